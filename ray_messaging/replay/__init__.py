"""Replay of real traces: who messaged whom, and when."""
