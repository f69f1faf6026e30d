"""Sweeps: a grid of settings, one training run per combination, resumable, with their results in one table."""
