"""Embedded servers of an experiment: the primary, and with steps further ones for bodies of frames."""
