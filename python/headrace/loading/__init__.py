"""Loading of samples by Python code: workers, collation, index streams, and the driver for map-style objects.

Each module knows only those before it in this list: `steps` (arithmetic of global batches), `pool` (threads),
`items` (the items of one batch at once), `collate`, `processes`, `samplers`, `mapstyle`.
"""
