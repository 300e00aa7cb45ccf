"""Policies shared by all rooms: retries, limits, health of background tasks."""
