"""Simulation steps: messages of one step are read in the next, in an order that neither faults nor groups change."""
