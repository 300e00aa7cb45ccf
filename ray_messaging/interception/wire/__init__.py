"""What travels between a messager and the interceptor."""
