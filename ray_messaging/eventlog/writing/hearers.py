"""The hearers of broadcasts, for the log. A row of a broadcast stands for all agents of one mailbox that hear it.

The row does not list these agents. It names the audience and the mailbox's set of agents, from which readers determine
the agents.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.audiences.cache import AudienceCache, audience_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import agents_digest, encode_kept, kept_places
from ray_messaging.errors import FrameError, LogError, MessagingError, UnknownName
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import read_agents, write_agents
from ray_messaging.eventlog.log_schema import OF_BROADCASTS, SCHEMA
from ray_messaging.eventlog.stored_audiences import audiences_of
from ray_messaging.eventlog.writing.repeated_columns import nulls, repeated
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.steps.box_frames import unamended_broadcasts
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.wire.frames import decode, is_folded

_KEPT = 256  # at most this many Edges are cached; each has the hearers of an audience's version in one mailbox
_Key = tuple[AudiencePairs, bytes]
Retry = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class Hearers(NamedTuple):
    """The agents of one mailbox that hear each row of some broadcasts.

    `agents` is the digest of the set of all agents of the mailbox. `pairs` has the number of hearers of each row.

    For each sender, the audience has a list of the mailbox's agents that hear this sender. If the whole list hears a
    row, `kept` does not have the row. If a rule has excluded some agents of the list, `kept[row]` has the other agents
    as indices into the list, encoded by `encode_kept`.
    """

    agents: str
    pairs: NDArray[np.int64]
    kept: dict[int, bytes]

    def take(self, rows: NDArray[np.intp]) -> "Hearers":
        """Return the hearers of some rows."""
        kept = {at: self.kept[row] for at, row in enumerate(rows.tolist()) if row in self.kept} if self.kept else {}
        return Hearers(self.agents, self.pairs[rows], kept)


HearersOf = Callable[[Batch], Hearers | None]


def hearers_of(broadcasts: Batch, edges: Edges) -> Hearers:
    """Return whom broadcasts reach. In the frame, one row of a broadcast stands for all its hearers in a mailbox.

    Args: `edges` has the pairs of sender and hearer in the audience's version, for the agents of this mailbox only.

    Raises: FrameError if the edges give another number of pairs than the frame.
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
        raise FrameError(
            "the files of an audience differ between the event log and the sender of a broadcast: the sender's files "
            f"give {folded.pairs:,} pairs of sender and hearer, and the files here {int(pairs.sum()):,}. Restore the "
            "files as the sender has them, or make the audience again by messaging.create_audience"
        )
    return Hearers(folded.agents.hex(), pairs, kept)


def _key_of(broadcasts: Batch) -> _Key:
    assert broadcasts.fold is not None
    return audience_of(broadcasts), broadcasts.fold.agents


def hearer_columns(found: Sequence[Hearers | None], counts: Sequence[int]) -> dict[str, pa.Array]:
    """Return, by name, the log's columns that say which agents each row of several batches has reached.

    Args: `found` has the hearers of each batch (None: no hearers are known). `counts` has each batch's number of rows.
    """
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
    """The search for the hearers of broadcasts, for the log's writer. It stores sets of agents in the log's folder.

    If a file cannot be read or written, the call is repeated. If an audience or a set of agents is missing or damaged,
    its broadcasts are logged without hearers, and `lacking` reports them.

    Args: `persist` is a function that repeats a call while the server is away, or while a file cannot be read or
    written.
    """

    def __init__(self, transport: RedisTransport, folder: Folder, persist: Retry) -> None:
        self._transport = transport
        self._persist = persist
        self._folder = folder
        self._audiences = AudienceCache(audiences_of(folder))
        self._edges: OrderedDict[_Key, Edges] = OrderedDict()
        self._lacking: dict[str, None] = {}  # sentences that say which broadcasts lack hearers, in order

    def lacking(self) -> list[str]:
        """Return which broadcasts were logged without hearers since the last call of this method, and why."""
        found, self._lacking = [*self._lacking], {}
        return found

    async def of_frames(self, frames: Iterable[bytes]) -> "FrameHearers":
        """Load what is needed to find the hearers of the broadcasts in some frames.

        Returns: an object that finds the hearers.
        """
        found: dict[_Key, Edges | None] = {}
        for frame in filter(is_folded, frames):
            try:
                batch = decode(frame)
            except FrameError:  # the error is reported when the frame is logged
                continue
            key = _key_of(batch)
            if found.get(key) is None:
                found[key] = await self._load(batch, *key)
        return FrameHearers(found, self._lack)

    async def _load(self, batch: Batch, audience: AudiencePairs, digest: bytes) -> Edges | None:
        edges = self._edges.pop((audience, digest), None)
        if edges is None:
            try:
                edges = await self._persist(partial(self._edges_of, batch, audience, digest))
            except (FrameError, UnknownName) as error:
                self._lack(batch, error)
                return None
        self._edges[audience, digest] = edges
        while len(self._edges) > _KEPT:
            self._edges.popitem(last=False)
        return edges

    async def _edges_of(self, batch: Batch, audience: AudiencePairs, digest: bytes) -> Edges:
        edges = await self._audiences.toward(audience, await self._agents_of(digest), digest)
        # The first call of `counts` reads all pairs, so it runs in a thread.
        await asyncio.to_thread(edges.counts, batch.from_ids)
        return edges

    async def tidy(self) -> None:
        """Move all sets of agents from the server into the log's folder. Senders have stored these sets on the server.

        Raises: OSError or ConnectionFailed if that fails. The call may then be repeated.
        """
        digests = await self._transport.log.agent_digests()
        for digest in digests:
            # A set that cannot be read was written by another program, or is already gone.
            with suppress(FrameError, UnknownName):
                await self._agents_of(digest)
        await self._transport.log.forget_agents(digests)

    async def _agents_of(self, digest: bytes) -> AgentSet:
        """Return the set of agents with a digest, and store it in the folder.

        Raises: UnknownName if neither the folder nor the server has the set, and no mailbox has had these agents;
        FrameError if the server's copy of the set cannot be decoded.
        """
        found = await asyncio.to_thread(self._stored, digest)
        if found is None:
            found = await self._transport.log.agents(digest) or await self._of_a_mailbox(digest)
            await asyncio.to_thread(write_agents, self._folder, digest.hex(), found)
        return found

    def _stored(self, digest: bytes) -> AgentSet | None:
        """Return the set of agents with a digest from the folder, or None if its file is missing or damaged."""
        try:
            return read_agents(self._folder, digest.hex())
        except LogError:
            return None

    async def _of_a_mailbox(self, digest: bytes) -> AgentSet:
        """Find the set of agents with a digest among the present and former agents of the mailboxes.

        Frames that were written before the log began need this, because their senders stored no set.

        Raises: UnknownName if no mailbox has these agents.
        """
        for record in (await self._transport.load_directory(0)).changed:
            for agents in (*record.by_subtopic().values(), *record.former()):
                if agents_digest(agents) == digest:
                    return agents
        raise UnknownName(
            f"no set of agents with the hash {digest.hex()} was found: neither the server nor any mailbox has these "
            "agents now",
            kind="agents",
            value=digest.hex(),
        )

    def _lack(self, batch: Batch, error: MessagingError) -> None:
        audience, version = audience_of(batch)
        text = f"broadcasts of {batch.sender} to audience {audience!r}, version {version}, have no hearers in the log"
        self._lacking[f"{text}, because {error}"] = None


class FrameHearers:
    """The hearers of the broadcasts in some frames.

    Call this object with the batch of one of these frames: it returns the hearers of the batch's rows. It returns None
    if the rows are not broadcasts, or if their hearers are not known.
    """

    def __init__(self, found: Mapping[_Key, Edges | None], lack: Callable[[Batch, MessagingError], None]) -> None:
        self._found = found
        self._lack = lack

    def __call__(self, batch: Batch) -> Hearers | None:
        """Return the agents that each row of a batch reaches.

        Return None if these agents are not known, or if the rows are not broadcasts.
        """
        edges = None if batch.fold is None else self._found.get(_key_of(batch))
        if edges is not None:
            try:
                return hearers_of(batch, edges)
            except FrameError as error:
                self._lack(batch, error)
        return None

    def unamended(self, batch: Batch, amendments: Sequence[Batch]) -> Batch | None:
        """Return the broadcasts of a batch, without some of their hearers.

        A hearer is left out if a rule for whole steps blocked or changed the broadcast for this hearer.

        Return None if no hearer is left.

        Args: `amendments` is what `amendments_of` returns for the batch.
        """
        edges = self._found.get(_key_of(batch))
        return batch if edges is None else unamended_broadcasts(batch, edges, amendments)
