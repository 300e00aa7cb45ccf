"""Axes of cost: the interceptor, the log, processor time, memory."""
