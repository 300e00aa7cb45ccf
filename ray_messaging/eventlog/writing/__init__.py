"""Writing of the event log: from the streams of mailboxes into segments."""
