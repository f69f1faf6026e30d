"""One file per format; each gives a `Format` that `labelwise.data.open_data` knows."""
