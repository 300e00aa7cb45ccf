"""Channels, patterns, and the directory of mailboxes."""
