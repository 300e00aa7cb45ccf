"""Surveys: one question for many agents, with answers of one type that are kept on the server."""
