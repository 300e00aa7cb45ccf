"""Connections to one Redis or Valkey server."""
