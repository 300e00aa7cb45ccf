"""Receiving: our mailbox, its session at the broker, the order of its frames, its cursor."""
