"""Verdicts of rules on broadcasts."""
