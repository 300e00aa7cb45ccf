"""Surveys: one question to many agents, with answers of one type, which are kept on the server."""
