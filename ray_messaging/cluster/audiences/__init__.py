"""Audiences of an experiment on Ray: made on one node, read from every one."""
