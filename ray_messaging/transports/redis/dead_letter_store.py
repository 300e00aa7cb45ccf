"""Dead letters on a Redis or Valkey server: a stream, and a hash that counts."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from ray_messaging.transports.dead_letter_store import (
    LETTER_BYTES,
    PAGE_BYTES,
    DeadFacts,
    DeadFrame,
    Forward,
    Listeners,
    Requeued,
    Returned,
    order_of,
)
from ray_messaging.transports.redis.transport import RedisTransport

_DROPPED_AT_ONCE = 500
_DIGITS = 20  # of 64 bits
_STATE = ":dead"  # no mailbox can have this name


class RedisDeadLetters:
    """Dead letters of one experiment, over the connections of its RedisTransport."""

    forwarding = None

    def __init__(self, transport: RedisTransport) -> None:
        self._transport = transport
        self._link, self._keys = transport.link, transport.keys

    async def known(self) -> bool:
        """Return whether the server knows an experiment of this name."""
        return bool(await self._link.command("EXISTS", self._keys.meta, self._keys.dead))

    async def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""
        letters, (known, *counts) = await self._counts()
        if known != letters:  # another client wrote here
            await self.drop([])
            letters, (_, *counts) = await self._counts()
        return DeadFacts(letters, *counts)

    async def _counts(self) -> tuple[int, list[int]]:
        """Return the number of letters, and the server's own counts; an invalid count is 0."""
        letters = await self._link.command("XLEN", self._keys.dead)
        names = ("letters", "bytes", "dropped", "dropped_bytes")
        counts = await self._link.command("HMGET", self._keys.state(_STATE), *names)
        return int(letters), [_natural(count or b"") or 0 for count in counts]

    async def page(self, after: str, count: int) -> list[DeadFrame]:
        """Return up to `count` letters behind an id, fewer where they are large; [] at the end."""
        if "/" in after:  # a server that is none of ours
            return []
        reply = await self._link.script("read_letters", [self._keys.dead], [after or "0-0", count, PAGE_BYTES])
        return [_dead_frame(letter.decode(), fields) for letter, fields in reply]

    async def spans(self) -> list[tuple[str, str]]:
        """Return an id before the first letter, and that of the last one."""
        found = await self._link.command("XREVRANGE", self._keys.dead, "+", "-", "COUNT", 1)
        return [("", letter.decode()) for letter, _ in found]

    async def get(self, letter: str) -> DeadFrame | None:
        """Return one letter; None: there is none of this id."""
        if "/" in letter:  # a server that is none of ours
            return None
        reply = await self._link.command("XRANGE", self._keys.dead, letter, letter)
        return _dead_frame(letter, reply[0][1]) if reply else None

    async def listeners(self, home: int = 0) -> Listeners:
        """Return the mailboxes that listen now."""
        delta = await self._transport.load_directory(-1)
        return Listeners(
            delta.version, delta.changed, await self.born(record.mailbox for record in delta.changed), home
        )

    async def born(self, mailboxes: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return when mailboxes of this server came, as `Listeners` has it."""
        found = {}
        for mailbox in mailboxes:
            counted, since = await self._link.command("HMGET", self._keys.state(mailbox), "born", "since")
            found[mailbox] = int(counted or 0), int(since or 0)
        return found

    async def clock(self) -> int:
        """Return the server's time, in microseconds."""
        seconds, micro = await self._link.command("TIME")
        return int(seconds) * 1_000_000 + int(micro)

    async def requeue(
        self, letter: str, version: int, frames: Sequence[Returned], rest: bytes, forwards: Sequence[Forward] = ()
    ) -> tuple[Requeued, str]:
        """Write frames into mailboxes and take the letter away, all of it or nothing; returns the mailbox at fault."""
        keys = [self._keys.meta, self._keys.dead, self._keys.state(_STATE), self._keys.forwards]
        args: list[Any] = [letter, secrets.token_hex(8), version, self._keys.prefix, rest, len(forwards)]
        for mailbox, shard, exclusive, frame in forwards:
            args += [mailbox, shard, int(exclusive), frame]
        for mailbox, rows, frame in frames:
            keys += [self._keys.state(mailbox), self._keys.lease(mailbox)]
            args += [mailbox, rows, frame]
        fate, mailbox = await self._link.script("requeue", keys, args)
        return Requeued(fate), mailbox.decode()

    async def addressed(self, mailbox: str) -> DeadFrame | None:
        """Return the letter that is on its way to a mailbox of another shard."""
        letter = await self._link.command("HGET", self._keys.forwards, mailbox)
        return None if letter is None else await self.get(letter.decode())

    async def under_way(self) -> list[DeadFrame]:
        """Return the letters that are on their way to mailboxes of other shards, the oldest first."""
        letters = [letter.decode() for letter in await self._link.command("HVALS", self._keys.forwards)]
        found = [await self.get(letter) for letter in sorted(letters, key=order_of)]
        return [letter for letter in found if letter is not None]

    async def receive(
        self, home: int, letter: str, version: int | None, mailbox: str, frames: Sequence[Returned] = ()
    ) -> Requeued:
        """Write a letter of another shard into a mailbox, once.

        Args: letter is "" to ask whether it would be written; version is None to give it up.
        """
        keys = [self._keys.meta, self._keys.state(mailbox), self._keys.lease(mailbox), self._keys.received]
        args: list[Any] = [self._keys.prefix, mailbox, home, letter, "" if version is None else version]
        for _, rows, frame in frames:
            args += [rows, frame]
        return Requeued(await self._link.script("receive_letter", keys, args))

    async def end_forward(self, letter: DeadFrame, *, delivered: bool) -> str:
        """Take away a letter that was delivered, or let one that was given up be as others.

        Returns the id that it had, or the new one; "": it was done before.
        """
        keys = [self._keys.dead, self._keys.state(_STATE), self._keys.forwards]
        weight = len(letter.frame) + LETTER_BYTES
        args = [secrets.token_hex(8), letter.id, letter.to, int(delivered), self._keys.prefix, weight]
        return str((await self._link.script("end_forward", keys, args)).decode())

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; return how many there were."""
        keys = [self._keys.dead, self._keys.state(_STATE), self._keys.forwards]
        dropped, letters = 0, [letter for letter in letters if "/" not in letter]
        for low in range(0, max(1, len(letters)), _DROPPED_AT_ONCE):
            ids = letters[low : low + _DROPPED_AT_ONCE]
            dropped += int(await self._link.script("drop_letters", keys, [secrets.token_hex(8), *ids]))
        return dropped

    async def count_anew(self) -> None:
        """Forget how many letters were lost to the limit so far."""
        await self._link.command("HDEL", self._keys.state(_STATE), "dropped", "dropped_bytes")


def _natural(text: bytes) -> int | None:
    """Return a number; None if the text is none."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS else None


def _dead_frame(letter: str, fields: list[bytes]) -> DeadFrame:
    """Read an entry; other writers of the stream may leave out any field."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))

    def text(name: bytes) -> str:
        return found.get(name, b"").decode(errors="replace")

    def number(name: bytes) -> int | None:
        return _natural(found.get(name, b""))

    at = number(b"at")
    return DeadFrame(
        id=letter,
        mailbox=text(b"mailbox"),
        entry=text(b"entry"),
        row=number(b"row") or 0,
        reason=text(b"reason") or "no reason is given",
        frame=found.get(b"f", b""),
        at=(int(letter.partition("-")[0]) if at is None else at) / 1000,
        born=number(b"born"),
        exclusive=found.get(b"exclusive") == b"1",
        acked=text(b"acked"),
        to=text(b"to"),
        shard=number(b"shard"),
    )
