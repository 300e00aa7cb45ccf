"""Schemas of subtopics without Ray, and what a group's handle relays to its host."""

from ray_messaging.model.json_types import described
from ray_messaging.sending.bulk_input import columns_of
from support.frames import frames_of_columns


async def set_schema(messager, subtopic, kind=None, text=None):
    """Set the schema of a subtopic by a type or by its text, or remove it, as `messaging.schema` does."""
    await messager.engine.transport.set_schema(subtopic, text if kind is None else described(kind))


async def relay(messager, from_ids, to_ids, payloads, subtopic):
    """Send columns as a group's handle does, by frames that the host of the group relays."""
    chunks = columns_of(from_ids, to_ids, payloads, 10_000)
    return await messager.relay(frames_of_columns(chunks, subtopic, None))
