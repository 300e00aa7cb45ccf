"""The Valkey server that an experiment starts for itself."""
