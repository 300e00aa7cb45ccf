"""Rules that judge whole steps, on both sides: the supervisor, and the readers of the boxes that it amends."""
