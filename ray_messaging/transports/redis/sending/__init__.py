"""Calls that send: their arguments, and large frames."""
