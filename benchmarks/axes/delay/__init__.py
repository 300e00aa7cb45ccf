"""Axes of time: lone messages, beside disturbances, the start, a crash."""
