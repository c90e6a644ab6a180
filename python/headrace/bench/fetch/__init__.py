"""The benchmark of fetching: how fast a store is read before anything is decoded, beside a plain parallel reader."""
