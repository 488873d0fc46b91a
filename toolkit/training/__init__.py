"""Training: a model and batches, up to the files of a run directory."""
