"""`python -m headrace.demo`: the same as `headrace demo`."""

import sys

from headrace.demo.run import main

main(sys.argv[1:])
