"""Circles: agents in a volume that push and pull those near them."""
