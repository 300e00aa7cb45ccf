"""Servers, clocks, clusters and other helpers that tests share: `from support.servers import ...`."""
