"""Tables and exposure in, what of a drift no output can show, and what the encoder sees of it, out."""
