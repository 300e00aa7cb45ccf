"""The directory of mailboxes: entries that the broker retains."""
