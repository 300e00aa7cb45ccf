"""The hearers that each row of a broadcast stands for, and the audiences and sets of agents that name these hearers."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.audiences.cache import AudienceCache, audience_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import agents_digest, encode_kept, kept_places
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.errors import FrameError, MessagingError, UnknownName
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.records import read_agents, write_agents
from ray_messaging.eventlog.schema import OF_BROADCASTS, SCHEMA
from ray_messaging.eventlog.writing.repeated_columns import nulls, repeated
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Audience
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.transports.values import DirectoryDelta
from ray_messaging.wire.frames import decode, is_folded

logger = logging.getLogger(__name__)

_KEPT = 256  # most edges to keep, each those of an audience's version toward a mailbox's agents
_Key = tuple[Audience, bytes]


class Hearers(NamedTuple):
    """The hearers of each row of some broadcasts.

    `agents` is the digest of the mailbox's agents, and `pairs` the number of hearers of each row. `kept` maps a row to
    its hearers' places among all hearers of the sender in that mailbox; rows that are not in it have all of these
    hearers.
    """

    agents: str
    pairs: NDArray[np.int64]
    kept: dict[int, bytes]

    def take(self, rows: NDArray[np.intp]) -> "Hearers":
        """Return the hearers of some rows."""
        kept = {at: self.kept[row] for at, row in enumerate(rows.tolist()) if row in self.kept} if self.kept else {}
        return Hearers(self.agents, self.pairs[rows], kept)


def hearers_of(broadcasts: Batch, edges: Edges) -> Hearers:
    """Return the hearers of a folded frame's rows.

    Args: edges are the pairs of the audience's version whose hearers are agents of the mailbox.

    Raises: FrameError if the edges do not give the number of pairs that the frame has.
    """
    folded = broadcasts.fold
    assert folded is not None
    pairs, kept = edges.counts(broadcasts.from_ids), dict[int, bytes]()
    if folded.kept:
        starts = np.cumsum(pairs) - pairs
        places = kept_places(folded.kept, int(pairs.sum()))
        bounds = np.searchsorted(places, np.append(starts, pairs.sum()))
        whole, pairs = pairs, np.diff(bounds)
        for row in np.flatnonzero(pairs != whole).tolist():
            own = places[bounds[row] : bounds[row + 1]] - starts[row]
            kept[row] = encode_kept(own, int(whole[row]))
    if int(pairs.sum()) != folded.pairs:
        raise FrameError(f"the frame counts {folded.pairs:,} pairs, its audience has {int(pairs.sum()):,} of them")
    return Hearers(folded.agents.hex(), pairs, kept)


def hearer_columns(found: Sequence[Hearers | None], counts: Sequence[int]) -> dict[str, pa.Array]:
    """Return the columns that describe the hearers of all rows, by name."""
    if not any(found):
        return {name: nulls(sum(counts), SCHEMA.field(name).type) for name in OF_BROADCASTS}
    pairs = [
        np.zeros(count, np.int64) if each is None else each.pairs for each, count in zip(found, counts, strict=True)
    ]
    kept: list[bytes | None] = [None] * sum(counts)
    start = 0
    for each, count in zip(found, counts, strict=True):
        for row, places in {} if each is None else each.kept.items():
            kept[start + row] = places
        start += count
    return {
        "pairs": pa.array(np.concatenate(pairs), mask=np.repeat([each is None for each in found], counts)),
        "hearing_agents": repeated([None if each is None else each.agents for each in found], counts),
        "kept_pairs": pa.array(kept, pa.binary()),
    }


class BroadcastHearers:
    """The hearers of broadcasts, for the log's writer. It stores the audiences and sets of agents in the log's folder.

    A row whose hearers cannot be found is logged without them. Args: `retry` repeats a call while the server is away.
    """

    def __init__(
        self,
        transport: RedisTransport,
        folder: Folder,
        retry: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
    ) -> None:
        self._transport = transport
        self._retry = retry
        self._folder = folder
        self._audiences = AudienceCache(LocalFolder(Path(folder.path) / "audiences") if folder.local else None)
        self._agents: dict[bytes, AgentSet] = {}
        self._edges: OrderedDict[_Key, Edges | None] = OrderedDict()

    async def prepare(self, frames: Iterable[bytes]) -> None:
        """Load what is needed to find the hearers in some frames. It must be called before `of`."""
        for frame in filter(is_folded, frames):
            try:
                batch = decode(frame)
            except FrameError:  # reported when the frame is logged
                continue
            assert batch.fold is not None
            await self._load(batch, audience_of(batch), batch.fold.agents)

    async def _load(self, batch: Batch, audience: Audience, digest: bytes) -> None:
        key = audience, digest
        if self._edges.get(key) is None:
            try:
                edges = await self._audiences.toward(audience, await self._agents_of(digest), digest)
                await asyncio.to_thread(edges.counts, batch.from_ids)  # the first time takes a pass over all pairs
                self._edges[key] = edges
            except (MessagingError, OSError) as error:
                logger.warning("broadcasts of %s to %s are logged without hearers: %s", batch.sender, audience, error)
                self._edges[key] = None
        self._edges.move_to_end(key)
        while len(self._edges) > _KEPT:
            self._edges.popitem(last=False)

    async def _agents_of(self, digest: bytes) -> AgentSet:
        """Return the agents with a digest, and store them in the folder; raise UnknownName if no mailbox has them."""
        if digest not in self._agents:
            found = await asyncio.to_thread(read_agents, self._folder, digest.hex())
            if found is None:
                found = await self._of_a_mailbox(digest)
                await asyncio.to_thread(write_agents, self._folder, digest.hex(), found)
            self._agents[digest] = found
        return self._agents[digest]

    async def _of_a_mailbox(self, digest: bytes) -> AgentSet:
        directory: DirectoryDelta = await self._retry(partial(self._transport.load_directory, 0))
        for record in directory.changed:
            for agents in (*record.by_subtopic().values(), *record.former()):
                if agents_digest(agents) == digest:
                    return agents
        raise UnknownName(f"no mailbox has the agents {digest.hex()} any more", kind="agents", value=digest.hex())

    def of(self, batch: Batch) -> Hearers | None:
        """Return the hearers of a frame's rows; None if its rows are not broadcasts, or their hearers are not known."""
        if batch.fold is None:
            return None
        edges = self._edges.get((audience_of(batch), batch.fold.agents))
        if edges is None:
            return None
        try:
            return hearers_of(batch, edges)
        except FrameError as error:
            logger.warning("broadcasts of %s are logged without hearers: %s", batch.sender, error)
            return None
