"""The tables of one trajectory in, its drift report out."""
