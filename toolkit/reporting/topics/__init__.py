"""The topics of a report, one a file: its chart, of a table of the API, and what stands around it."""
