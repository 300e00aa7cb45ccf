"""The sweep that all programs run: the contagion with more or fewer agents that begin, twelve runs."""

FIRSTS = [50, 100, 200, 400, 800, 1600, 60, 120, 240, 480, 960, 1920]  # every so-many-th agent is active at first
PROCESSES = 2
