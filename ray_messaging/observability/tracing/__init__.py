"""Tracing: spans of sampled batches, for OpenTelemetry."""
