"""The sending side: a window of unconfirmed frames for each mailbox."""
