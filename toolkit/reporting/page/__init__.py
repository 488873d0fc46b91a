"""What a report says in, its offline HTML page out."""
