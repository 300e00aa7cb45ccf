"""Which primary counts, where Sentinels say different things."""

import asyncio
import gc
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from support.answering import HOST, answering, oks
from support.instant_loop import run

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.discovery import NoPrimaryError, answers_of
from ray_messaging.transports.connection.sentinels import Sentinels


def reply(port, epoch, flags="master"):
    """Return the answer to SENTINEL MASTERS."""
    fields = {"name": "town", "ip": HOST, "port": str(port), "flags": flags, "config-epoch": str(epoch)}
    parts = [part for pair in fields.items() for part in pair]
    body = "".join(f"${len(part)}\r\n{part}\r\n" for part in parts)
    return f"*1\r\n*{len(parts)}\r\n{body}".encode()


@asynccontextmanager
async def answering_sentinels(*replies, connections=None):
    """Give the questioner of Sentinels that answer this (None: nothing), and have their connections in a set."""

    def answer(text, data):
        return text if b"MASTERS" in data.upper() else oks(data)

    async with answering(*(partial(answer, text) for text in replies), connections=connections) as ports:
        yield Sentinels(RedisConfig(sentinels=[f"{HOST}:{port}" for port in ports], service="town"))


async def named(*replies):
    """Return the primary that counts where Sentinels answer this (None: nothing)."""
    async with answering_sentinels(*replies) as sentinels:
        return await sentinels.primary()


@pytest.mark.parametrize(
    ("replies", "port"),
    [
        pytest.param([reply(1, 3), reply(2, 4), None], 2, id="of a majority the highest epoch"),
        pytest.param([None, reply(1, 4), reply(2, 3)], 1, id="of another majority"),
        pytest.param([reply(1, 3, "master,s_down"), reply(1, 3)], 1, id="one that sees it"),
        pytest.param([None, None, reply(1, 3)], 1, id="without a majority", marks=pytest.mark.long),
    ],
)
async def test_the_primary_that_counts(replies, port):
    assert await named(*replies) == (HOST, port)


def test_a_late_first_answer_does_not_decide_alone():
    async def answer(after_s):
        await asyncio.sleep(after_s)
        return after_s

    async def asked(*after):
        return await answers_of({str(each): answer(each) for each in after})

    assert run(asked(2.5, 3.4, 9)) == {"2.5": 2.5, "3.4": 3.4}  # each server is busy
    assert run(asked(0.1, 1.2, 9)) == {"0.1": 0.1}


async def test_a_primary_that_is_down_is_not_named():
    down = reply(7, 3, "master,s_down,o_down")
    with pytest.raises(NoPrimaryError, match=r"127\.0\.0\.1:7, is down, and no replica has taken its place"):
        await named(down, down, down)


@pytest.mark.long
async def test_silent_sentinels_are_listed():
    with pytest.raises(NoPrimaryError, match=r"no answer in time; .*no answer in time"):
        await named(None, None)


async def test_a_sentinel_that_is_named_twice_is_asked_once():
    async with answering_sentinels(reply(7001, 3)) as sentinels:
        sentinels._config = sentinels._config.model_copy(update={"sentinels": sentinels._config.sentinels * 2})
        assert await sentinels.primary() == (HOST, 7001)
    gc.collect()  # a question that was never asked would be an error here


async def test_a_question_that_is_given_up_leaves_no_connection():
    connections = set()
    async with answering_sentinels(*[reply(1, 3)] * 3, connections=connections) as sentinels:
        for turns in range(60):  # of the loop: an answer takes fewer
            question = asyncio.create_task(sentinels.primary())
            for _ in range(turns):
                await asyncio.sleep(0)
            question.cancel()
            with suppress(asyncio.CancelledError):
                await question
            async with asyncio.timeout(30):
                while connections:  # noqa: ASYNC110 - the servers' ends are in this loop
                    await asyncio.sleep(0)
        assert await sentinels.primary() == (HOST, 1)
