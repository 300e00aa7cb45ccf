"""The seeds themselves, each in an environment of its own, beside ours."""
