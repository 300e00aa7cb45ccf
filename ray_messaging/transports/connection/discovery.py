"""Discovery of the primary: all servers that may know it are asked at the same time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from ray_messaging.transports.connection.protocol import Wire

T = TypeVar("T")

ANSWER_S = 3.0  # how many seconds to wait for a first answer; the wait is long because the machines may be busy
REFUSED = (AuthenticationError, NoPermissionError)
_MAJORITY_S = 1.0  # how many seconds to wait, after the first answer, for the answers of a majority


class NoPrimaryError(RedisConnectionError):
    """No primary can be used: the asked servers name none, or the named server is down, or is a replica."""


class WrongSettingsError(NoPrimaryError):
    """The asked servers answer, but cannot know the primary, because the settings are wrong."""


async def answers_of(
    questions: Mapping[str, Coroutine[Any, Any, T]], counts: Callable[[T], bool] = lambda _: True
) -> dict[str, T | RedisError | OSError]:
    """Return, by server, the answers and errors that have come once more than half of the servers have answered.

    If the time is over first, return what has come until then. One answer is not enough, because a server
    that was cut off from the others may name an old primary.

    Args: `counts` says whether an answer counts toward the majority.
    """
    now, name = asyncio.get_running_loop().time, "ray_messaging question for the primary"
    tasks = {asyncio.create_task(question, name=name): where for where, question in questions.items()}
    waiting, answers, counted, ends = set(tasks), dict[str, T | RedisError | OSError](), 0, now() + ANSWER_S
    try:
        while waiting and counted <= len(tasks) // 2:
            left = max(0.0, ends - now())
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                try:
                    answers[tasks[task]] = task.result()
                    if counts(task.result()):
                        ends = ends if counted else now() + _MAJORITY_S
                        counted += 1
                except (RedisError, OSError) as error:
                    answers[tasks[task]] = error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return answers


def said_by(asked: Iterable[str], answers: Mapping[str, object]) -> str:
    """Return a text for error messages that says what each of the `asked` servers has answered."""
    return "; ".join(f"{where}: {answers.get(where, 'no answer in time')}" for where in asked)


async def replies_of(
    address: tuple[str, int], options: Mapping[str, Any], commands: Sequence[Sequence[str]]
) -> list[Any]:
    """Return a server's replies to some commands, which are sent over a new connection.

    The connection is closed without waiting for the close, because a cancelled wait could leave it open.

    Args: `options` are arguments for the connection class of redis-py.
    """
    host, port = address
    options = {**options, "host": host, "port": port, "retry": Retry(NoBackoff(), 0)}
    kind = SSLConnection if options.pop("ssl") else Connection
    wire = await Wire.open(kind(**options))
    try:
        return await asyncio.gather(*wire.calls(commands, ANSWER_S))
    finally:
        wire.close()
