"""Surveys of many agents."""
