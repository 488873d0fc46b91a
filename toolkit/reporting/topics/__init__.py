"""One file a topic: what it measures, its chart and its section of a page."""
