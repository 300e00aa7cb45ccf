"""Data types without I/O: batches of messages as columns, sets of agents, aggregates, and exact encodings."""
