"""Checkpoints, classifiers on top of them, and which of their components are frozen."""
