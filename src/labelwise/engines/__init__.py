"""Load any model, convert it, choose the fastest engine, export it, quantise it."""
