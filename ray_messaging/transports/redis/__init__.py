"""Mailboxes in Redis or Valkey: streams, written by Lua scripts."""

from ray_messaging.transports.redis.transport import RedisTransport

__all__ = ["RedisTransport"]
