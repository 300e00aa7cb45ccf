"""Topics and messages by which messagers talk over a broker."""
