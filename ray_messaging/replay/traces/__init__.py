"""Trace files: three formats, read into columns."""
