"""Logs of the same rows, and writers of an experiment's log."""

import asyncio
from contextlib import suppress

import pytest
from support.contracts import until
from support.log_queries import ROWS, write_folder
from support.log_writing import Society

from ray_messaging import EventLog
from ray_messaging.errors import MessagingError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.writer import LogWriter


@pytest.fixture
def folder(tmp_path):
    """Write a log of two segments."""
    return write_folder(tmp_path / "log", [ROWS[:3], ROWS[3:]])


@pytest.fixture
def log(folder):
    return EventLog.open(folder.where)


@pytest.fixture
async def society(local, transports):
    """Write into the streams of an experiment; mailbox `a` is open."""
    found = Society(local)
    found.transport = await transports("exp")
    found.epoch = await found.mailbox("a")
    return found


@pytest.fixture
async def writers(transports, tmp_path):
    """Open writers on one folder; at the end none of their tasks may be left."""
    opened = []

    async def open_one(transport=None, where=tmp_path / "log", *, start=True, **settings):
        transport = transport or await transports("exp")
        writer = LogWriter(transport, Folder(where), "exp", **{"segment_age_s": 1e9} | settings)
        opened.append(writer)
        if start:
            await writer.start()
        return writer

    yield open_one
    for writer in opened:
        if writer.error is None:
            with suppress(MessagingError):
                await writer.close()
    await until(lambda: not any(task.get_name().startswith("ray_messaging") for task in asyncio.all_tasks()))
