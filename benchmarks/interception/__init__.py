"""Cost of rules, and moderation of a real collection."""
