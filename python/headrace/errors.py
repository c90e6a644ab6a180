"""Everything that headrace raises of its own.

Wrong arguments raise `ValueError` or `TypeError`. Messages say what, where, what was wanted and what was found; a hint
follows on a line of its own.
"""

__all__ = ["BudgetError", "DataError", "HeadraceError", "MissingError", "StateMismatch", "StoreError"]


class HeadraceError(Exception):
    """The base of headrace's own errors."""


class DataError(HeadraceError, ValueError):
    """A file that does not hold what it should: damaged, truncated, changed, or of another type."""


class StoreError(HeadraceError, OSError):
    """A disk or object store that did not do what it was asked."""


class MissingError(StoreError, FileNotFoundError):
    """A file, object or bucket that is not there."""


class BudgetError(HeadraceError, ValueError):
    """A memory budget that is too small; the message says what is needed."""


class StateMismatch(HeadraceError, ValueError):
    """A state that is damaged, or of another run than the one it was loaded into; the message names both."""
