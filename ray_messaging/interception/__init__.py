"""Verdicts: the rules, the interceptor that applies them, and the way a messager asks it."""
