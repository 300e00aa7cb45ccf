"""Rights (ACL) of our user on a server: which rights are missing, and which right an error is about."""

import re
from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.transports.connection.scripts import script_at

# Each command that ray_messaging uses, with arguments that a server accepts in a transaction. K stands for a key; C, E
# and A stand for channels (see `lacking_rights`).
SAMPLES = tuple(
    line.split()
    for line in """\
DEL K
EVAL return 0
EVALSHA 0000000000000000000000000000000000000000 0
EXISTS K
GET K
HDEL K f
HEXISTS K f
HGET K f
HGETALL K
HINCRBY K f 1
HKEYS K
HMGET K f
HRANDFIELD K
HSET K f v
HSETNX K f v
HVALS K
INFO
LINDEX K 0
PERSIST K
PEXPIRE K 1
PING
PUBLISH C v
RENAME K K
RPUSH K v
SADD K v
SCAN 0
SCARD K
SET K v
SMEMBERS K
SREM K v
SUBSCRIBE C
SUBSCRIBE E
SUBSCRIBE A
PSUBSCRIBE C
TIME
UNLINK K
XADD K * f v
XDEL K 1-1
XINFO STREAM K
XLEN K
XRANGE K - +
XREAD STREAMS K 0
XREVRANGE K + -
XTRIM K MAXLEN 1
ZADD K 1 v
ZCOUNT K 0 1
ZRANGE K 0 1
ZRANGEBYSCORE K 0 1
ZREM K v
ZSCORE K v""".splitlines()
)
_COMMAND = re.compile(r"run the '([\w|]+)' command")
_PLACE = re.compile(r"script: (?P<sha>[0-9a-f]{40}), on @user_script:(?P<line>\d+)")
_CALL = re.compile(r"redis\.p?call\(\s*'(\w+)'")


def lacking_rights(client: "redis.Redis", keys: Keys) -> list[str] | None:
    """Return the rights that a client's user lacks, in the form for ACL SETUSER. Nothing on the server is changed.

    A server checks the rights for each command of a transaction when the command is queued. This transaction is never
    executed, because its connection is closed first. Return None for a user that may not use transactions.
    """
    given = {"K": f"{keys.prefix}*", "C": keys.own, "E": f"{keys.ears}*", "A": f"{keys.channels}*"}
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command("MULTI")
        try:
            connection.read_response()
        except NoPermissionError:
            return None  # without a transaction, the commands would be executed, so they are not sent
        replies = []
        for sample in SAMPLES:
            connection.send_command(*(given.get(part, part) for part in sample))
        for _ in SAMPLES:
            try:
                replies.append(connection.read_response())
            except ResponseError as error:
                replies.append(error)
        return list(dict.fromkeys(_lacking(replies, given)))
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)


def _lacking(replies: list[Any], given: dict[str, str]) -> Iterator[str]:
    for sample, reply in zip(SAMPLES, replies, strict=True):
        if isinstance(reply, NoPermissionError):
            text = str(reply)
            if "channel" in text:
                yield f"&{given[sample[1]]}"
            elif " key" in text:
                yield f"~{given['K']}"
            else:
                yield f"+{'|'.join(sample[:2] if sample[0] == 'XINFO' else sample[:1]).lower()}"


def right_of(error: BaseException) -> str | None:
    """Return the right that is missing according to a server's error, or None if the error does not say which."""
    text = str(error)
    if (found := _COMMAND.search(text)) is not None:
        return f"+{found[1].lower()}"
    place = _PLACE.search(text)
    line = None if place is None else script_at(place["sha"], int(place["line"]))
    called = None if line is None or "command or subcommand" not in text else _CALL.search(line)
    return None if called is None else f"+{called[1].lower()}"
