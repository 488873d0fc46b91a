"""Runs and drift tables in, figures and a report out."""
