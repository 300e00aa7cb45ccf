"""Broadcasts as rows of a frame."""
