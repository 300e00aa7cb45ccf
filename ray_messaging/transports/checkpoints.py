"""Copies of an experiment's data between two steps. They are read from one server, and written as another experiment.

Code never comes from a server or a checkpoint. So the user gives the rules again, and each rule finds its saved state
by its name.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ray_messaging.addressing.server_keys import START, Keys
from ray_messaging.default_limits_and_leases import SCAN_COUNT
from ray_messaging.transports.connection.link import RedisLink

_AT_ONCE = 1_000  # how many keys are read in one call, and how many pairs are written in one command
_BOX = "box"
# A key `box-cover:...` has the counts of one box. Fields with names of this form count the rows that came into the box
# from outside of the steps.
_OUTSIDE = re.compile(rb"c:-?\d+:")
_BUS = "bus:"  # keys of AgentScope's hub, whose hashes have fields with names that users choose
# Fields of the key `steps`. In a checkpoint, each of them has the number of the checkpoint's step.
_PROGRESS = (b"asked", b"opened", b"latest", b"sealed", b"dropped")


class CopiedKey(NamedTuple):
    """One key of an experiment: its name without the experiment's prefix, its type in Redis, and its content as pairs.

    The pairs of a hash are (field, value); of a list, a set or a string (value, b""); of a sorted set (member, score);
    of a stream (entry id, the entry's fields in msgpack). The fields `life` and `ceiling` of the experiment are copied
    too. So on the new server, new entries get higher ids than the copied entries, as they do after a restart of a
    server.
    """

    key: str
    kind: str
    content: Sequence[tuple[bytes, bytes]]


class RedisCheckpoints:
    """Reader and writer of all data of an experiment, while none of its steps is open."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link = link
        self._prefix = keys.prefix
        self._meta = keys.meta

    # -- reading --------------------------------------------------------------------------------------------------

    async def read(self, step: int) -> list[CopiedKey]:
        """Return the experiment's data after a step that all groups have closed.

        No group may have opened a later step.
        """
        found: list[CopiedKey] = []
        names = [name for name in await self._names() if _is_kept(name, step)]
        for low in range(0, len(names), _AT_ONCE):
            part = names[low : low + _AT_ONCE]
            kinds = await self._link.commands(*(("TYPE", self._prefix + name) for name in part))
            typed = [(name, kind.decode()) for name, kind in zip(part, kinds, strict=True) if kind != b"none"]
            commands = [_READS[kind](self._prefix + name) for name, kind in typed]
            replies = await self._link.commands(*commands)
            read = [(*key, reply) for key, reply in zip(typed, replies, strict=True) if reply is not None]
            found += [CopiedKey(name, kind, _pairs(kind, reply)) for name, kind, reply in read]
        return [_of_run(each, step) for each in _without_outside(found)]

    async def _names(self) -> list[str]:
        names: set[str] = set()
        cursor = b"0"
        while True:
            _, cursor, keys = await self._link.script(
                "scan_keys", [self._meta], [cursor, self._prefix + "*", SCAN_COUNT]
            )
            names.update(key.decode().removeprefix(self._prefix) for key in keys)
            if int(cursor) == 0:
                return sorted(names)

    # -- writing --------------------------------------------------------------------------------------------------

    async def write(self, copied: Iterable[CopiedKey]) -> None:
        """Write the data of an experiment that has no data yet. After an interruption, this call may be repeated."""
        for key, kind, content in copied:
            name = self._prefix + key
            await self._link.command("DEL", name)
            if kind == "stream":
                for entry, fields in content:
                    await self._link.command("XADD", name, entry, *msgspec.msgpack.decode(fields))
                continue
            values = [pair[at] for pair in content for at in _WRITTEN.get(kind, (0,))]
            width = 2 * _AT_ONCE
            for low in range(0, len(values), width):
                await self._link.command(_COMMANDS[kind], name, *values[low : low + width])


_READS: dict[str, Callable[[str], tuple[Any, ...]]] = {
    "hash": lambda key: ("HGETALL", key),
    "string": lambda key: ("GET", key),
    "list": lambda key: ("LRANGE", key, 0, -1),
    "set": lambda key: ("SMEMBERS", key),
    "zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    "stream": lambda key: ("XRANGE", key, "-", "+"),
}
_COMMANDS = {"hash": "HSET", "string": "SET", "list": "RPUSH", "set": "SADD", "zset": "ZADD"}
# For each type of key: in which order the command that writes the key takes the two items of a pair. The commands for
# the other types take only the first item.
_WRITTEN = {"hash": (0, 1), "zset": (1, 0)}


def _pairs(kind: str, reply: Any) -> list[tuple[bytes, bytes]]:  # noqa: ANN401 - a reply
    if kind in {"hash", "zset"}:
        return [*zip(reply[::2], reply[1::2], strict=True)]
    if kind == "stream":
        return [(entry, msgspec.msgpack.encode(fields)) for entry, fields in reply]
    return [(value, b"") for value in ([reply] if kind == "string" else reply)]


def _is_kept(name: str, step: int) -> bool:
    """Return whether a checkpoint after a step contains a key.

    A checkpoint lacks boxes that groups have read already, and keys that belong to one call of `Messaging.start`.
    """
    if name.startswith(_BOX):
        return int(name.rpartition("@")[2]) > step
    return not name.startswith(START)


def _without_outside(copied: Sequence[CopiedKey]) -> list[CopiedKey]:
    """Return the data without the messages that were sent outside of the steps and that no group has read yet.

    An experiment that continues from the checkpoint takes all such messages from the event log of the experiment that
    was copied. If the checkpoint had them too, they would arrive twice. The checkpoint alone would not be enough,
    because it lacks messages that were sent later.
    """
    sizes: Counter[str] = Counter()  # for each box, the bytes of its frames that are left out
    found: list[CopiedKey] = []
    for key, kind, content in copied:
        frames = {entry: _fields(value) for entry, value in content} if key.startswith("box:") else {}
        outside = {entry: fields for entry, fields in frames.items() if fields[b"t"].split(b":")[1] == b"0"}
        sizes[key.removeprefix("box:")] += sum(len(fields[b"f"]) for fields in outside.values())
        found.append(CopiedKey(key, kind, [pair for pair in content if pair[0] not in outside]))
    for place, (key, kind, content) in enumerate(found):
        # The rows are counted in the cover itself (the box's counts), because the box was read at another time, and may
        # have other messages by then.
        counts = [int(value.split(b":")[1]) for field, value in content if _OUTSIDE.fullmatch(field)]
        if key.startswith("box-cover:") and counts:
            left = {field: value for field, value in content if not _OUTSIDE.fullmatch(field)}
            left[b"rows"] = b"%d" % (int(left[b"rows"]) - sum(counts))
            left[b"bytes"] = b"%d" % (int(left[b"bytes"]) - sizes[key.removeprefix("box-cover:")])
            # A cover without rows is dropped, because the copied list of boxes may lack its box: the box may have
            # begun, with a message from outside, while the keys were being listed.
            found[place] = CopiedKey(key, kind, [*left.items()] if left[b"rows"] != b"0" else [])
    return [each for each in found if each.content or not each.key.startswith("box-cover:")]


def _fields(value: bytes) -> dict[bytes, bytes]:
    fields = msgspec.msgpack.decode(value)
    return dict(zip(fields[::2], fields[1::2], strict=True))


def _of_run(copied: CopiedKey, step: int) -> CopiedKey:
    """Return a key without the fields that belong to one call of `Messaging.start`.

    In the key `steps`, the fields that say how far the steps have come are set to `step`.
    """
    key, kind, content = copied
    if kind != "hash" or key.startswith(_BUS):
        return copied
    fields = {name: value for name, value in content if not name.startswith(START.encode())}
    if key == "steps":
        fields |= dict.fromkeys(_PROGRESS, b"%d" % step)
    return CopiedKey(key, kind, [*fields.items()])
