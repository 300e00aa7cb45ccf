"""Topics and messages of the protocol between two messagers."""
