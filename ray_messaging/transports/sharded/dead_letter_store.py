"""Dead letters on several shards: each keeps those of its own mailboxes, and forwards what goes to others.

A letter's own shard is the authority, as that of a transaction is for its outbox. Three calls, each of which has its
effect once, so that anybody may repeat them:

1. requeue.lua takes the letter apart: what mailboxes of the shard take is written, and what goes to a mailbox of
   another shard becomes a letter of its own, addressed to that mailbox. There is one at a time for each mailbox.
2. receive_letter.lua on the mailbox's shard writes it and notes its id, in place of that of the last one. Where its
   agents are not in that mailbox any more, it notes that the letter was given up, so that a late call writes nothing.
3. end_forward.lua takes the letter away, or makes of one that was given up a letter as others are.

An addressed letter that any process meets goes on at 2.
"""

from collections import defaultdict
from collections.abc import Awaitable, Sequence

from ray_messaging.transports.dead_letter_store import (
    DeadFacts,
    DeadFrame,
    Forward,
    Listeners,
    Requeued,
    Returned,
)
from ray_messaging.transports.redis.dead_letter_store import RedisDeadLetters
from ray_messaging.transports.sharded.calls import at_all
from ray_messaging.transports.sharded.transport import ShardedTransport
from ray_messaging.transports.sharded.versions import version_of

_CLOCK_LOOKS = 3  # at each clock: the shortest one says most


class ShardedForwarding:
    """Dead letters on their way between the servers of one experiment."""

    def __init__(self, transport: ShardedTransport, shards: Sequence[RedisDeadLetters]) -> None:
        self._transport = transport
        self._shards = shards

    async def ask(self, home: int, version: int, frames: Sequence[Returned]) -> tuple[Requeued, str]:
        """Return DONE if mailboxes of other shards take these frames now, or why not, with the mailbox at fault."""
        parts: defaultdict[str, list[Returned]] = defaultdict(list)
        for frame in frames:
            parts[frame.mailbox].append(frame)
        asked = [self._receive(home, "", version, mailbox, part) for mailbox, part in parts.items()]
        for mailbox, fate in zip(parts, await at_all(asked), strict=True):
            if fate is not Requeued.DONE:
                return fate, mailbox
        return Requeued.DONE, ""

    def _receive(
        self, home: int, letter: str, version: int, mailbox: str, frames: Sequence[Returned]
    ) -> Awaitable[Requeued]:
        shard = self._transport.home(mailbox)
        return self._shards[shard].receive(home, letter, version_of(version, shard), mailbox, frames)

    async def addressed(self, home: int, mailbox: str) -> DeadFrame | None:
        """Return the letter of a shard that is on its way to a mailbox."""
        found = await self._shards[home].addressed(mailbox)
        return None if found is None else placed(found, home, len(self._shards))

    async def under_way(self, home: int) -> list[DeadFrame]:
        """Return the letters of a shard that are on their way, the oldest first."""
        return [placed(letter, home, len(self._shards)) for letter in await self._shards[home].under_way()]

    async def deliver(self, letter: DeadFrame, version: int, frames: Sequence[Returned]) -> Requeued:
        """Write a letter's frames into its mailbox, all or none; MISSING: another process has settled it."""
        return await self._receive(letter.home, place_of(letter.id)[1], version, letter.to, frames)

    async def give_up(self, letter: DeadFrame) -> Requeued:
        """Return GIVEN_UP, so that it never will be written there; DONE if it is; MISSING as in `deliver`."""
        assert letter.shard is not None  # it is addressed
        return await self._shards[letter.shard].receive(letter.home, place_of(letter.id)[1], None, letter.to)

    async def end(self, letter: DeadFrame, *, delivered: bool) -> str:
        """Take a delivered letter away, or let one that was given up be as others; return its new id, "": it is so."""
        there = letter._replace(id=place_of(letter.id)[1])
        found = await self._shards[letter.home].end_forward(there, delivered=delivered)
        return found and _named(letter.home, found)


class ShardedDeadLetters:
    """Dead letters of one experiment on several servers; one on another shard than the first has the id `SHARD/id`."""

    def __init__(self, transport: ShardedTransport, shards: Sequence[RedisDeadLetters]) -> None:
        self._transport = transport
        self._shards = shards
        self.forwarding = ShardedForwarding(transport, shards)

    async def known(self) -> bool:
        """Return whether the servers know an experiment of this name."""
        return any(await at_all(shard.known() for shard in self._shards))

    async def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""
        found = await at_all(shard.facts() for shard in self._shards)
        return DeadFacts(*map(sum, zip(*found, strict=True)))

    async def page(self, after: str, count: int) -> list[DeadFrame]:
        """Return up to `count` letters behind an id ("": from the first), shard by shard; [] at the end."""
        first, behind = place_of(after)
        for shard in range(first, len(self._shards)):
            found = await self._shards[shard].page(behind if shard == first else "", count)
            if found:
                return [placed(letter, shard, len(self._shards)) for letter in found]
        return []

    async def spans(self) -> list[tuple[str, str]]:
        """Return for each server with letters an id before its first one, for `page`, and the id of its last one."""
        found = await at_all(shard.spans() for shard in self._shards)
        spans = enumerate(found)
        return [(_named(shard, ""), _named(shard, last)) for shard, some in spans for _, last in some]

    async def get(self, letter: str) -> DeadFrame | None:
        """Return one letter; None: there is none of this id."""
        shard, there = place_of(letter)
        found = await self._shards[shard].get(there) if shard < len(self._shards) else None
        return None if found is None else placed(found, shard, len(self._shards))

    async def listeners(self, home: int = 0) -> Listeners:
        """Return the mailboxes that listen now, for letters of a shard."""
        delta = await self._transport.load_directory(-1)
        names: list[list[str]] = [[] for _ in self._shards]
        for record in delta.changed:
            names[self._transport.home(record.mailbox)].append(record.mailbox)
        born = await self._shards[home].born(names[home])
        others = [shard for shard in range(len(self._shards)) if shard != home and names[shard]]
        for found in await at_all(self._born_elsewhere(home, shard, names[shard]) for shard in others):
            born |= found
        elsewhere = {name: shard for shard in others for name in names[shard]}
        return Listeners(delta.version, delta.changed, born, home, elsewhere)

    async def _born_elsewhere(self, home: int, shard: int, mailboxes: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return when mailboxes of another shard came, the earliest time that it may be by the clock of `home`."""
        ahead = []
        for _ in range(_CLOCK_LOOKS):
            here = await self._shards[home].clock()
            ahead.append(here - await self._shards[shard].clock())
        found = await self._shards[shard].born(mailboxes)
        return {name: (0, (since * 1000 + max(ahead)) // 1000) for name, (_, since) in found.items()}

    async def requeue(
        self, letter: str, version: int, frames: Sequence[Returned], rest: bytes, forwards: Sequence[Forward] = ()
    ) -> tuple[Requeued, str]:
        """Write frames into mailboxes of the letter's shard and take the letter away, all of it or nothing.

        Returns the mailbox at fault.
        """
        shard, there = place_of(letter)
        return await self._shards[shard].requeue(there, version_of(version, shard), frames, rest, forwards)

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; return how many there were."""
        parts: list[list[str]] = [[] for _ in self._shards]
        for letter in letters:
            shard, there = place_of(letter)
            if shard < len(parts):
                parts[shard].append(there)
        return sum(await at_all(store.drop(some) for store, some in zip(self._shards, parts, strict=True) if some))

    async def count_anew(self) -> None:
        """Forget how many letters were dropped so far."""
        await at_all(shard.count_anew() for shard in self._shards)


def _named(shard: int, letter: str) -> str:
    return f"{shard}/{letter}" if shard else letter


def place_of(letter: str) -> tuple[int, str]:
    """Return the shard of a letter, and its id there."""
    shard, slash, there = letter.rpartition("/")
    return (int(shard), there) if slash and shard.isdecimal() else (0, letter)


def placed(letter: DeadFrame, home: int, shards: int) -> DeadFrame:
    """Return a letter of a shard; one is on its way only to another one, whatever other writers say."""
    shard = letter.shard if letter.to and letter.shard is not None and letter.shard < shards else None
    return letter._replace(id=_named(home, letter.id), home=home, shard=shard)
