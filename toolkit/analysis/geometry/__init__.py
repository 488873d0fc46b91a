"""Tables in, the shape of their clouds and updates out."""
