"""Two tables in, how alike they are as spaces out."""
