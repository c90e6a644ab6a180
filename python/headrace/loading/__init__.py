"""Loading: the drivers behind `headrace.DataLoader`, and what Python code needs to be loaded by them.

Each module knows only those before it in its line:

- `arguments`, `base`: what the loader is given, and what it asks of a driver.
- `steps`, `schedule`: arithmetic of global batches.
- `team`, `pool`: threads, and tasks whose results come in order; `items`: the items of one batch at once.
- `collate`, `fetch`: samples to a batch; `wire`, `worker`, `processes`: the same in other processes; `choose`: which.
- `keys`, `samplers`, `streams`, `map_arguments`, `mapstyle`: keys to tasks, and the driver for other objects.
- `run_arguments`, `run_driver`: what the drivers for datasets of headrace have in common.
- `sample_run`, `prefetch`, `make`, `sample_feed`, `samples`: that for samples; `packed_run`, `packed`: that for tokens.
"""
