"""Loading: the drivers behind `headrace.DataLoader`, and what Python code needs to be loaded by them.

Each module knows only those before it in its line:

- `steps`, `schedule`: arithmetic of global batches.
- `team`, `pool`: threads, and tasks whose results come in order; `items`: the items of one batch at once.
- `collate`, `fetch`: samples to a batch; `wire`, `worker`, `processes`: the same in other processes; `choose`: which.
- `keys`, `samplers`, `streams`, `mapstyle`: keys to tasks, and the driver for objects that are not headrace's.
- `sample_run`, `prefetch`, `samples`: the driver for headrace's samples; `packed_run`, `packed`: for packed tokens.
"""
