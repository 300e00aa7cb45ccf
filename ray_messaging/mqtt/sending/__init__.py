"""Sending: a window of unconfirmed frames per mailbox, and publications on topics of users."""
