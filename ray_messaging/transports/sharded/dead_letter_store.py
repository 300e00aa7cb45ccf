"""Dead letters on several shards: each keeps those of its own mailboxes."""

from collections.abc import Sequence

from ray_messaging.transports.dead_letter_store import DeadFacts, DeadFrame, Listeners, Requeued, Returned
from ray_messaging.transports.redis.dead_letter_store import RedisDeadLetters
from ray_messaging.transports.sharded.calls import at_all
from ray_messaging.transports.sharded.transport import ShardedTransport
from ray_messaging.transports.sharded.versions import version_of


class ShardedDeadLetters:
    """Dead letters of one experiment on several servers; one on another shard than the first has the id `SHARD/id`."""

    def __init__(self, transport: ShardedTransport, shards: Sequence[RedisDeadLetters]) -> None:
        self._transport = transport
        self._shards = shards

    async def known(self) -> bool:
        """Return whether the servers know an experiment of this name."""
        return any(await at_all(shard.known() for shard in self._shards))

    async def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""
        found = await at_all(shard.facts() for shard in self._shards)
        return DeadFacts(*map(sum, zip(*found, strict=True)))

    async def page(self, after: str, count: int) -> list[DeadFrame]:
        """Return up to `count` letters behind an id ("": from the first), shard by shard; [] at the end."""
        first, behind = _place(after)
        for shard in range(first, len(self._shards)):
            found = await self._shards[shard].page(behind if shard == first else "", count)
            if found:
                return [letter._replace(id=_named(shard, letter.id)) for letter in found]
        return []

    async def get(self, letter: str) -> DeadFrame | None:
        """Return one letter; None: there is none of this id."""
        shard, there = _place(letter)
        found = await self._shards[shard].get(there) if shard < len(self._shards) else None
        return None if found is None else found._replace(id=letter)

    async def listeners(self) -> Listeners:
        """Return the mailboxes that listen now."""
        delta = await self._transport.load_directory(-1)
        found = await at_all(shard.listeners() for shard in self._shards)
        born = {name: times for listeners in found for name, times in listeners.born.items()}
        return Listeners(delta.version, delta.changed, born)

    async def requeue(self, letter: str, version: int, frames: Sequence[Returned], rest: bytes) -> tuple[Requeued, str]:
        """Write frames into mailboxes of the letter's shard and take the letter away, all of it or nothing.

        Returns the mailbox at fault, as one on another shard.
        """
        shard, there = _place(letter)
        for frame in frames:
            if self._transport.home(frame.mailbox) != shard:
                return Requeued.ELSEWHERE, frame.mailbox
        return await self._shards[shard].requeue(there, version_of(version, shard), frames, rest)

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; return how many there were."""
        parts: list[list[str]] = [[] for _ in self._shards]
        for letter in letters:
            shard, there = _place(letter)
            if shard < len(parts):
                parts[shard].append(there)
        return sum(await at_all(store.drop(some) for store, some in zip(self._shards, parts, strict=True) if some))

    async def count_anew(self) -> None:
        """Forget how many letters were dropped so far."""
        await at_all(shard.count_anew() for shard in self._shards)


def _named(shard: int, letter: str) -> str:
    return f"{shard}/{letter}" if shard else letter


def _place(letter: str) -> tuple[int, str]:
    """Return the shard of a letter, and its id there."""
    shard, slash, there = letter.rpartition("/")
    return (int(shard), there) if slash and shard.isdecimal() else (0, letter)
