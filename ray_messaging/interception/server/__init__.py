"""The interceptor."""
