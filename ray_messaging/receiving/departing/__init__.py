"""Agents that leave a mailbox, with their messages."""
