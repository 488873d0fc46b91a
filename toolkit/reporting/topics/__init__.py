"""What reports are made of: one file a topic, with its tables, its charts and its section."""
