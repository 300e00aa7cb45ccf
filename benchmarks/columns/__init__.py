"""Typed columns, JSON payloads, and the bytes alone."""
