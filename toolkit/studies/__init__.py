"""Studies: many runs that answer one question, and their comparison."""
