"""`python -m headrace.bench [tokens] [FOLDER]`: the benchmarks by name; `tokens` is the only one so far."""

import sys

from headrace.bench import tokens

arguments = sys.argv[1:]
tokens.main(arguments[1:] if arguments[:1] == ["tokens"] else arguments)
