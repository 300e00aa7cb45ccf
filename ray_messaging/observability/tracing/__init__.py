"""Tracing by OpenTelemetry: spans of a sample of the batches and steps."""
