"""Access to the server: connections, scripts, and the stores of an experiment's mailboxes, log, rules and steps."""
