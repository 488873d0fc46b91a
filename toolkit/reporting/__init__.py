"""Pages, charts and tables of runs and checkpoints, and the folders that hold them."""
