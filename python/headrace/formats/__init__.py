"""The formats that samples are read from, a module each; `headrace.open` finds out which one it is."""
