"""Observation of experiments: health checks, metrics and traces."""
