"""Fixtures of the tests of what a server keeps; they ask the layouts of servers that the contracts ask."""

from support.layouts import (  # noqa: F401 - fixtures, and the hook that chooses the layouts
    news,
    opener,
    own_shards,
    processes,
    pytest_collection_modifyitems,
    server,
    transport,
    transports,
)
