"""Samples: which there are, how they are read, in which order, and what is done to them.

`source` is what formats offer; `selection` says which items a dataset consists of; `stages`, `expression` and `where`
are what users do to them; `pipeline` reads and applies; `order` says what comes next; `driver` feeds a loader;
`dataset` is the user's side.
"""
