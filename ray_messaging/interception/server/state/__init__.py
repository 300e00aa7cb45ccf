"""What rules must not forget, kept on the server."""
