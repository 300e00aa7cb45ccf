"""Schemas of payloads: a JSON Schema per subtopic, which senders enforce."""
