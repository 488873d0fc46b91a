"""Two tables in, what kind of change it was out."""
