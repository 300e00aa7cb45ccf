"""Simulation steps: what is sent in one step is read in the next, in an order that no fault and no layout changes."""
