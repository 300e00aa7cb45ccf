"""Messages that wait for a slow rule."""
