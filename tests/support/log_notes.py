"""What senders leave on the server for the event log, where nobody writes it."""

from ray_messaging.model.fates import FATES
from ray_messaging.transports.transport_values import LOG_STREAM, Limits
from ray_messaging.wire.frames import decode
from ray_messaging.wire.notes import decode_log_note
from support.patience import WAIT_S


async def keep_notes(messager, messages=1_000):
    """Have senders leave notes for the log, of so many messages at most."""
    await messager.engine.transport.log.register(Limits(messages, 2**20, 60.0, leased=False))


async def notes_of(messager):
    """Return the fate and the number of takers of each note."""
    items = await messager.engine.transport.log.read({LOG_STREAM: "0-0"}, 100, WAIT_S)
    noted = [item for item in items if item.note is not None]
    return [(FATES[decode_log_note(item.note, len(decode(item.frame))).fate], item.takers) for item in noted]
