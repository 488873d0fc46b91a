"""Tasks and data files, up to encoded batches."""
