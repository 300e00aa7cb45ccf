"""Rules in an experiment with steps."""
