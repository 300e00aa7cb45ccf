"""The receiving side: read frames from a durable cursor, buffer them, hand them out, commit what was handled."""
