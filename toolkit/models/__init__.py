"""A checkpoint and a regime in, a classifier with frozen components out."""
