"""The `log` commands."""
