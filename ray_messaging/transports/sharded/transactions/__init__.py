"""Transactions over several shards: what waits for other shards, and its relay."""
