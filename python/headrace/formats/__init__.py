"""The formats that samples are read from, a module each; `detect` finds out which one it is."""
