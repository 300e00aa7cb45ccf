"""Handles of a running experiment: its groups, steps, rules, log, dead letters, audiences and surveys."""
