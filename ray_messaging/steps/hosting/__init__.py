"""The hosts of agents in each step, and the messages of agents that have moved."""
