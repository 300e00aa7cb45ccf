"""Helpers for all folders, such as retry policies, texts for people, and the health of background tasks."""
