"""Simulation steps: messages of one step are read in the next, in an order that no fault and no layout changes."""
