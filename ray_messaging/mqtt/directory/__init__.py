"""The directory of mailboxes, as retained messages at a broker."""
