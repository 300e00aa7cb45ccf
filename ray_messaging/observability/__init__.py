"""Observation of experiments: health checks, and the observer for metrics and traces."""
