"""Bounds of the machine, and the bare server beside ours."""
