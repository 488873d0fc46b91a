"""A table of positions in, the page on what it is made of out."""
