"""The interceptor: rules in order, in an actor of its own."""
