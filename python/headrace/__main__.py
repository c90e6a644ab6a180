"""`python -m headrace`: the same as `headrace`."""

from headrace.cli import app

__all__: list[str] = []

if __name__ == "__main__":
    app(prog_name="headrace")
