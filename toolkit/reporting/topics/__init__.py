"""What reports are about: a file a topic, with its tables, its charts and its page."""
