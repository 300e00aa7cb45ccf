"""Positions that groups change in their steps."""
