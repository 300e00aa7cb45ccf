"""A messager's access to the interceptor."""
