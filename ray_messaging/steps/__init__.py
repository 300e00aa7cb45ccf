"""Simulation steps: a message sent in one step is read in the next step, in an order that is always the same."""
