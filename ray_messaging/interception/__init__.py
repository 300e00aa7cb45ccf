"""Interception: rules that judge messages before they are delivered."""
