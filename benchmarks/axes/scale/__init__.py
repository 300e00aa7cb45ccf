"""Axes of size: agents, groups, payloads, recipients, workers."""
