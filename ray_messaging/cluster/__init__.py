"""Experiments on a Ray cluster: the facade, handles for users, actors."""
