"""The time that a person waits: whole programs beside plain Ray."""
