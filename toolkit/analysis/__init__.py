"""Measurements of one run or one pair of checkpoints: snapshots and logs are enough, a model is never needed."""
