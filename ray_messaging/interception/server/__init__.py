"""The interceptor, which applies rules to messages."""
