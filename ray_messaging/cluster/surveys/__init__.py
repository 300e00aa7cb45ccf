"""Surveys, for drivers and tasks."""
