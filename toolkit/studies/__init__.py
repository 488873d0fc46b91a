"""A study in, its runs carried out and compared out."""
