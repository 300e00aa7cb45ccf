"""The interceptor: the process that judges messages by the rules."""
