"""Replay of real message traffic, with a check that every message arrives exactly as it should."""
