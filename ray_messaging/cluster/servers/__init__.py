"""Embedded servers of an experiment: one, or several as its shards."""
