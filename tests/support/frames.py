"""Frames as a group's handle encodes them."""

from ray_messaging.sending.bulk_input import batches_of_columns, batches_of_entries
from ray_messaging.wire.frames import encode


def frames_of_columns(chunks, topic, step):
    return [encode(batch) for batch in batches_of_columns(chunks, topic, step)]


def frames_of_entries(entries, step):
    return [encode(batch) for batch in batches_of_entries(entries, step)]
