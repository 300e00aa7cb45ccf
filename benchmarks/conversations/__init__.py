"""Conversations beside peers: the number game, the latency of a question, and what other rooms add as files."""
