"""Finished runs in, their scores, costs and drift compared out, with intervals, tests and verdicts."""
