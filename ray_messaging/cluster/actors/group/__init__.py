"""Ray actor of a group."""
