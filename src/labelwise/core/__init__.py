"""What every other package builds on: typed configs, errors, files, progress."""
