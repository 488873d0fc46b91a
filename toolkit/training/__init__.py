"""A model and batches in, moments of training out."""
