"""Runs whose rows come from lanes that know their own position: dynamic pipelines, and mixtures.

`source` is what a loader asks of whatever gives rows lane by lane; the other modules are such sources, the threads and
processes that they share, and the driver.
"""
