"""The server of a messager's messages: how the errors of its handlers end it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from support.batches import batch_to

from ray_messaging.conversations.server import MessageServer, Serving
from ray_messaging.errors import MailboxFull
from ray_messaging.message import Message


async def test_a_trace_shows_the_error_of_a_reply_itself():
    seen = []

    @contextmanager
    def handling(_message):
        try:
            yield
        except BaseException as error:
            seen.append(error)
            raise

    async def handler(_message):
        return {}

    async def reply(*_arguments):
        raise MailboxFull("no room", mailbox="west")

    service = SimpleNamespace(name="east", waits=None)
    server = MessageServer.__new__(MessageServer)
    server.__dict__ |= {
        "_service": service,
        "_serving": Serving(1, 0, None, "end"),
        "_handler": handler,
        "_reply": reply,
        "_over": False,
        "_tracer": SimpleNamespace(handling=handling),
    }
    message = Message("town", batch_to([2], [1], sender="west"), 0)
    with pytest.raises(MailboxFull):
        await server._handle(message)
    assert [type(error) for error in seen] == [MailboxFull]
