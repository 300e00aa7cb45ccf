"""Policies that all folders share: retries, limits, health of background tasks."""
