"""Mailboxes in this process's memory: the reference that the other transports are held against, and for tests."""

from ray_messaging.transports.memory.server import MemoryServer
from ray_messaging.transports.memory.transport import MemoryTransport

__all__ = ["MemoryServer", "MemoryTransport"]
