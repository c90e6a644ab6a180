"""`python -m headrace.bench tokens DATA`; `samples`, `preparing`, `records`, `fetch URL` likewise: the benchmarks."""

import sys

_NAMES = ("tokens", "samples", "preparing", "records", "fetch", "pipelines")

match sys.argv[1:2]:
    case ["tokens"]:
        from headrace.bench import tokens

        sys.exit(tokens.main(sys.argv[2:]))
    case ["samples"]:
        from headrace.bench.samples import command

        sys.exit(command.main(sys.argv[2:]))
    case ["preparing"]:
        from headrace.bench.preparing import command

        sys.exit(command.main(sys.argv[2:]))
    case ["fetch"]:
        from headrace.bench.fetch import command

        sys.exit(command.main(sys.argv[2:]))
    case ["pipelines"]:
        from headrace.bench.pipelines import command

        sys.exit(command.main(sys.argv[2:]))
    case ["records"]:
        from headrace.bench.records import command

        sys.exit(command.main(sys.argv[2:]))
    case _:
        sys.exit(f"usage: python -m headrace.bench {{{','.join(_NAMES)}}} ...; --help behind the name says more")
