"""Helpers of the rules."""
