"""Finished runs in, the report that compares them out."""
