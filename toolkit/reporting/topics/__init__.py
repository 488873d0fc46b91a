"""One file per topic of a report: its tables, its charts and its section."""
