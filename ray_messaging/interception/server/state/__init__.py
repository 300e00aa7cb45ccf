"""State of rules, saved on the server."""
