"""Broadcasts to audiences."""
