"""The hearers of broadcasts, as the log's writer looks them up."""

import asyncio
from types import SimpleNamespace

from ray_messaging.errors import UnknownName
from ray_messaging.eventlog.writing import hearers
from ray_messaging.eventlog.writing.hearers import BroadcastHearers
from ray_messaging.model.extension import Audience


async def test_many_audiences_without_files_are_looked_up_at_once(monkeypatch, caplog):
    async def agents_of(_digest):
        await asyncio.sleep(0)
        raise UnknownName("they are gone", kind="agents", value="")

    monkeypatch.setattr(hearers, "_KEPT", 2)
    made = BroadcastHearers(SimpleNamespace(), SimpleNamespace(local=False), None)
    monkeypatch.setattr(made, "_agents_of", agents_of)
    batch = SimpleNamespace(sender="east")
    await asyncio.gather(*(made._load(batch, Audience("all", version), b"") for version in range(5)))
    assert caplog.text.count("are logged without hearers: they are gone") == 5
