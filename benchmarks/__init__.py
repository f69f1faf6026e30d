"""Measurements of labelwise: the studies, and `python -m benchmarks.speed`."""
