"""Models over HTTP: one front process that speaks HTTP and checks limits, and worker processes that hold the models."""
