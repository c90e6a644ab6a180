"""The demonstration: real text of this machine, tokenised, loaded, killed, resumed and compared.

Run it with `headrace demo` or `python -m headrace.demo`. It needs the packages of `headrace[demo]`.
"""

__all__ = []
