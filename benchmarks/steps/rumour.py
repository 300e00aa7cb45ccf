"""The rumour that Mesa and ours run: whoever knows it tells it to one of six others in each step.

An agent in ten knows it at first. The choice depends on agent and step alone, so that all sides come to the same
result. No imports: Mesa's environment holds nothing of ours.
"""

OFFSETS = (1, 7, 251, 333, 500, 777)
KNOWS_AT_FIRST = 10  # one in so many


def choice(agent, step):
    """Return which friend an agent tells in a step; of an int or of an array of uint64."""
    mixed = (agent * 73856093 ^ step * 19349663) & 0xFFFFFFFF
    return ((mixed * 2654435761 & 0xFFFFFFFF) >> 16) % len(OFFSETS)
