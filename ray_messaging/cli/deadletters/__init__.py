"""The `deadletters` commands."""
