"""Stores of messages: Redis, or memory for tests."""
