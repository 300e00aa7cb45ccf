"""Columns of messages: a batch, its ids and payloads, and sets of agents."""
