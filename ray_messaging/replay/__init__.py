"""Replay of real traces, with a check of every message."""
