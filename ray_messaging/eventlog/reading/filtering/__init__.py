"""The rows that a question is about."""
