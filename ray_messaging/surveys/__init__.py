"""Surveys: one question to many agents, with answers of one type, which are stored on the server."""
