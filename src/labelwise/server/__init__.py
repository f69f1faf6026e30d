"""Models over HTTP: a front process speaks HTTP and enforces the limits, worker processes hold the models."""
