"""Studies: many runs that answer one question, carried out and compared."""
