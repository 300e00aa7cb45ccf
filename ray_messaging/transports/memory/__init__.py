"""Transport in this process's memory: the reference for the contract tests, and for users' tests."""

from ray_messaging.transports.memory.server import MemoryServer
from ray_messaging.transports.memory.transport import MemoryTransport

__all__ = ["MemoryServer", "MemoryTransport"]
