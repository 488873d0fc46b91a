"""Two snapshots in, how far every row and parameter moved out."""
