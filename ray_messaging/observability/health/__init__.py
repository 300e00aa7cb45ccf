"""Findings about a server and its actors, from facts that were collected elsewhere."""
