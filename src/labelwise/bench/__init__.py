"""Benchmarks that a user can run: `labelwise bench …`."""
