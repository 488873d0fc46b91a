"""Position and segment tables in, what they are made of out."""
