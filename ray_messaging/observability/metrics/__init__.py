"""Metrics: counts and durations of an experiment, for Prometheus and for Ray's dashboard."""
