"""The interceptor as a messager asks it."""
