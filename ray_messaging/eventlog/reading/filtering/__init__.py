"""Selection of the rows that match a query."""
