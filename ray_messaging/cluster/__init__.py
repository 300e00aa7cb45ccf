"""Experiments on a Ray cluster: the class `Messaging`, handles for users, and actors."""
