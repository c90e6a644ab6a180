"""`python -m headrace.bench tokens DATA`: the benchmarks by name; `tokens` is the only one so far."""

import sys

_NAMES = ("tokens",)

if sys.argv[1:2] == ["tokens"]:
    from headrace.bench import tokens

    sys.exit(tokens.main(sys.argv[2:]))
sys.exit(f"usage: python -m headrace.bench {{{','.join(_NAMES)}}} ...; --help behind the name says more")
