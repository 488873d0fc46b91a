"""Tables in, nearest words before and after out."""
