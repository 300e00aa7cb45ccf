"""The reading of a step: frames of a box as batches, their canonical order, and the inbox of the agents."""
