"""Tests; `tests.oracles` holds the independent implementations that benchmarks use too."""
