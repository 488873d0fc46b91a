"""A training step for one CPU process: the numbers of the plain one, with less memory moved and fewer random bits."""
