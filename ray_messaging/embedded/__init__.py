"""The Valkey server that an experiment starts if it gets no other server."""
