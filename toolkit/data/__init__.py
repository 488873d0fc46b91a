"""Tasks and files in, encoded batches out."""
