"""Tables of probes in, their pages and figures out."""
