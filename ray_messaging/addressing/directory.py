"""The directory: the records of all mailboxes. They determine to which mailboxes each message goes."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, build_channel, check_name
from ray_messaging.addressing.patterns import compile_glob, literal_prefix
from ray_messaging.audiences.audience_kinds import NO_AUDIENCES, Audiences, AudienceTexts
from ray_messaging.default_limits_and_leases import FRAME_BYTES, FRAME_ROWS
from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet, ascending
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import INT, STR, IdColumn
from ray_messaging.model.schema import Schemas

# Stands for the first step of a change that is valid in all steps. Without steps, all changes are valid always.
ALWAYS = -1


class HostDates:
    """For each move of agents from one mailbox to another, the first step in which the move is valid.

    A move is named by the version of the directory that it made.

    Args: `text` is stored on the server: ascending pairs `step:version`, separated by commas. A pair says that moves
    with this version or a later one, up to the next pair's version, are valid from this step on.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        pairs = [pair.split(":") for pair in text.split(",") if pair]
        self._steps = [int(step) for step, _ in pairs]
        self._versions = [int(version) for _, version in pairs]

    def since(self, version: int) -> int:
        """Return the first step in which the moves of a directory version are valid; ALWAYS if no step is known."""
        place = bisect_right(self._versions, version)
        return self._steps[place - 1] if place else ALWAYS


NO_DATES = HostDates()


NO_SCHEMAS: Mapping[str, bytes] = {}
_CACHED_ROUTES = 100_000  # at most this many routes are in each cache of a `Routes` object
NOBODY = 0  # the route of a channel without a mailbox
T = TypeVar("T", bound=np.generic)
# A record keeps at most this many changes, with at most this many agents. More are kept only if later steps need them.
_MOST_CHANGES, _KEPT_CHANGES = 64, 100_000
_LEAST = -(2**63)  # the least int64
_NO_STEP = 2**62  # a number above the numbers of all steps


class Claim(msgspec.Struct, array_like=True):
    """Agents, and the subtopics on which a mailbox listens for them.

    `ints` has the int ids as bytes (int64, little endian), and `strings` the str ids.
    """

    subtopics: tuple[str, ...]
    ints: bytes
    strings: tuple[str, ...]

    def agents(self) -> AgentSet:
        """Return the agents for which the mailbox listens, ints and strs together."""
        return AgentSet(np.frombuffer(self.ints, "<i8"), self.strings)

    def __len__(self) -> int:
        return len(self.ints) // 8 + len(self.strings)


class Change(msgspec.Struct, array_like=True):
    """One change of a mailbox's agents: the agents that came, and the agents that left, both as claims.

    With steps, `version` is the directory's version with the change. `HostDates` has the first step in which the change
    is valid. `origin` is the mailbox from which the agents came ("": from no mailbox).
    """

    came: list[Claim]
    went: list[Claim]
    version: int = 0
    origin: str = ""

    def __len__(self) -> int:
        return sum(map(len, (*self.came, *self.went)))


class FormerMailbox(msgspec.Struct, array_like=True):
    """With steps, a mailbox from which agents came.

    A mailbox has a box for each step. The boxes of this mailbox have messages that were sent to the agents before the
    move. `version` is the directory's version with the move. `HostDates.since` returns the first step after the move.
    """

    mailbox: str
    version: int


class MailboxRecord(msgspec.Struct, array_like=True):
    """The subscriptions of one mailbox. The server stores the record as msgpack.

    `claims` has the agents, `channels` the plain channels, and `globs` the patterns of channels to which the mailbox
    listens. If `exclusive` is true, no other mailbox may claim these agents. `origins` are the mailboxes from which
    agents came.
    """

    mailbox: str
    claims: list[Claim]
    channels: list[str]
    globs: list[str]
    exclusive: bool = False
    frame_rows: int = FRAME_ROWS // 4  # a frame for this mailbox has at most this many messages
    frame_bytes: int = FRAME_BYTES
    # Whether agents have moved to or from this mailbox. If so, a messager that opens the mailbox later hosts the agents
    # in this record, even if other agents are passed to the messager.
    moved: bool = False
    # The last changes of the mailbox's agents. They are kept because broadcasts that wait in the mailbox may
    # name agents that the mailbox had before a change.
    changes: list[Change] = []
    origins: list[FormerMailbox] = []

    def agents(self, subtopic: str | None = None) -> AgentSet:
        """Return the agents for which the mailbox listens on a subtopic (None: on any subtopic)."""
        return agents_of(claim for claim in self.claims if subtopic is None or subtopic in claim.subtopics)

    def by_subtopic(self) -> dict[str, AgentSet]:
        """Return, for each subtopic, the agents for which the mailbox listens."""
        return _by_subtopic(self.claims)

    def former(self) -> Iterator[AgentSet]:
        """Go through `changes`, the newest change first, and yield the agents of each subtopic before each change."""
        now = self.by_subtopic()
        for change in reversed(self.changes):
            now = _before(change, now)
            yield from now.values()

    def at(self, step: int, dates: HostDates) -> "MailboxRecord":
        """Return this record as it is in a step, without the changes that are valid only from a later step on."""
        now = None
        for change in reversed(self.changes):
            if dates.since(change.version) > step:
                now = _before(change, self.by_subtopic() if now is None else now)
        return self if now is None else msgspec.structs.replace(self, claims=claims_of(now))

    def succeeds(
        self,
        before: "MailboxRecord",
        version: int = 0,
        dates: HostDates = NO_DATES,
        came_from: "MailboxRecord | None" = None,
    ) -> "MailboxRecord":
        """Return this record, with the changes of the mailbox's earlier record `before` and the change since then.

        Args: Both are for experiments with steps. `version` is the first version of the directory that has the newest
        change (0: the change belongs to no step). `came_from` is the record of the mailbox that the new agents have
        left.
        """
        here, there, changes = self.by_subtopic(), before.by_subtopic(), before.changes
        came, went = _beyond(here, there), _beyond(there, here)
        if came or went:
            origin = "" if came_from is None else came_from.mailbox
            changes = [*changes, Change(came, went, version, origin)]
            while len(changes) > _MOST_CHANGES or sum(map(len, changes)) > _KEPT_CHANGES:
                if version and (dates.since(changes[0].version) != ALWAYS or changes[0].version == version):
                    break  # Later steps still need this change and all newer ones.
                changes = changes[1:]
        return msgspec.structs.replace(self, changes=changes, origins=_origins(before, version, dates, came_from))

    @property
    def agent_channels(self) -> int:
        """Return how many channels of agents the mailbox listens on."""
        return sum(len(claim.subtopics) * len(claim) for claim in self.claims)


def claims_of(by_subtopic: Mapping[str, AgentSet]) -> list[Claim]:
    """Return claims, which say for which agents and subtopics a mailbox listens.

    Subtopics with the same agents share a claim.
    """
    found: dict[AgentSet, list[str]] = {}
    for subtopic, agents in by_subtopic.items():
        found.setdefault(agents, []).append(subtopic)
    return [_claim(tuple(subtopics), agents) for agents, subtopics in found.items()]


def _claim(subtopics: tuple[str, ...], agents: AgentSet) -> Claim:
    return Claim(subtopics, agents.ints.astype("<i8").tobytes(), tuple(sorted(agents.strings)))


def agents_of(claims: Iterable[Claim]) -> AgentSet:
    """Return all agents that occur in any of the claims, which say for which agents a mailbox listens."""
    found = NO_AGENTS
    for claim in claims:
        found |= claim.agents()
    return found


def _by_subtopic(claims: Iterable[Claim]) -> dict[str, AgentSet]:
    """Return, for each subtopic that occurs in a claim, all agents that the claims have for this subtopic."""
    found: dict[str, AgentSet] = {}
    for claim in claims:
        agents = claim.agents()
        for subtopic in claim.subtopics:
            found[subtopic] = found.get(subtopic, NO_AGENTS) | agents
    return found


def _beyond(more: Mapping[str, AgentSet], less: Mapping[str, AgentSet]) -> list[Claim]:
    """Return the agents that are in `more` but not in `less`, compared subtopic by subtopic, as claims."""
    found = {subtopic: agents - less.get(subtopic, NO_AGENTS) for subtopic, agents in more.items()}
    return claims_of({subtopic: agents for subtopic, agents in found.items() if agents})


def encode_agents(agents: AgentSet) -> bytes:
    """Encode a set of agents as the server stores it."""
    return msgspec.msgpack.encode(_claim((), agents))


def decode_agents(data: bytes) -> AgentSet:
    """Decode a set of agents that the server has stored; raise FrameError if it is invalid."""
    try:
        return msgspec.msgpack.decode(data, type=Claim).agents()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(
            f"a set of agents on the server cannot be read ({error}): use one version of ray_messaging in all processes"
        ) from error


def _before(change: Change, now: Mapping[str, AgentSet]) -> dict[str, AgentSet]:
    """Return, by subtopic, the agents of a mailbox before a change. `now` has the mailbox's agents after the change."""
    came, went = _by_subtopic(change.came), _by_subtopic(change.went)
    return {
        subtopic: (now.get(subtopic, NO_AGENTS) - came.get(subtopic, NO_AGENTS)) | went.get(subtopic, NO_AGENTS)
        for subtopic in {**now, **went}
    }


def _origins(
    before: MailboxRecord, version: int, dates: HostDates, came_from: MailboxRecord | None
) -> list[FormerMailbox]:
    """Return the former mailboxes of a mailbox's agents, after a change of the mailbox's record.

    `before` is the mailbox's record before the change. `came_from` is the record of the other mailbox from which agents
    have moved to this mailbox. The result has that other mailbox, and the former mailboxes in both records. It has
    neither this mailbox itself, nor a former mailbox for which the step of the move is unknown. If `came_from` is None,
    no agents have moved to this mailbox, and the result is `before.origins`.
    """
    if came_from is None:
        return before.origins
    found: dict[tuple[str, int], FormerMailbox] = {}
    for each in (*before.origins, *came_from.origins):
        since = dates.since(each.version)
        if each.mailbox != before.mailbox and since != ALWAYS:
            found[each.mailbox, since] = each
    return [*found.values(), FormerMailbox(came_from.mailbox, version)]


encode_record = msgspec.msgpack.Encoder().encode  # the form in which the server stores a record
_decode = msgspec.msgpack.Decoder(MailboxRecord).decode


def decode_record(data: bytes) -> MailboxRecord:
    """Decode a mailbox's record that the server has stored; raise FrameError if it is invalid."""
    try:
        record = _decode(data)
        for claims in (record.claims, *(part for change in record.changes for part in (change.came, change.went))):
            for claim in claims:
                np.frombuffer(claim.ints, "<i8")
        check_name("its mailbox", record.mailbox)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FrameError(
            f"a mailbox's record on the server cannot be read ({error}): use one version of ray_messaging in all "
            "processes"
        ) from error
    if record.frame_rows < 1 or record.frame_bytes < 1:  # with such limits, no frame would be small enough
        raise FrameError(
            f"the record of mailbox {record.mailbox!r} on the server is invalid, because its limits (frame_rows="
            f"{record.frame_rows}, frame_bytes={record.frame_bytes}) let no message in: close the messager of this "
            "mailbox, and open it again"
        )
    return record


class IdTable(Generic[T]):
    """Map of int64 ids to values, such as routes.

    If the ids are close together, the map is a dense array. Otherwise an id is found by binary search.
    """

    def __init__(self, ids: NDArray[np.int64], routes: NDArray[T]) -> None:
        self.ids = ids  # ascending
        self.routes: NDArray[T] = routes
        self.before = int(self.ids[0]) - 1
        span = int(self.ids[-1]) - self.before
        self.dense: NDArray[T] | None = None
        if span <= 8 * len(ids) + 1024 and self.before >= _LEAST:
            # The first and the last item are for all ids outside of the range.
            self.dense = np.full(span + 2, NOBODY, routes.dtype)
            self.dense[self.ids - self.before] = self.routes

    def look_up(self, values: NDArray[np.int64]) -> NDArray[T]:
        """Return the value of each id.

        An unknown id gets NOBODY, the number of the route without mailboxes. In a table of bools it gets False.
        """
        if self.dense is not None:
            # If the difference overflows 64 bits, the result is also an index outside of the range.
            return self.dense.take(values - self.before, mode="clip")
        places = np.minimum(np.searchsorted(self.ids, values), len(self.ids) - 1)
        found: NDArray[T] = np.where(self.ids[places] == values, self.routes[places], self.routes.dtype.type(NOBODY))
        return found


class Routes:
    """Routes of messages to mailboxes, made from one version of the directory. A `Routes` is never changed.

    A route is an index into `routes`, a list of tuples of mailboxes. Route 0 has no mailbox. `logged` says whether an
    event log is registered in this version.

    Args: `before` are earlier routes, whose compiled patterns are used again.
    """

    def __init__(
        self,
        exp_id: str,
        records: Mapping[str, MailboxRecord],
        version: int = -1,
        *,
        logged: bool = False,
        before: "Routes | None" = None,
    ) -> None:
        self.exp_id = exp_id
        self.version = version
        self.logged = logged
        self.records = records
        self.routes: list[tuple[str, ...]] = [()]
        self._route_ids: dict[tuple[str, ...], int] = {(): NOBODY}
        self._tables: dict[str, IdTable[np.int32] | None] = {}
        self._claims: dict[str, list[tuple[Claim, str]]] = {}  # for each subtopic, the claims with their mailboxes
        self._strings: dict[tuple[str, str], int] = {}
        self._channels: dict[str, int] = {}
        # The mailboxes by id and topic, for messages that are sent one by one.
        self.cached: dict[tuple[AgentId | None, str], tuple[str, ...]] = {}
        # The route by id and topic, if mailboxes listen to patterns.
        self._matched: dict[tuple[AgentId | None, str], int] = {}
        # Patterns by the text that they begin with, because there may be a pattern for each agent.
        self._globs: dict[str, list[tuple[Callable[[str], bool], str]]] = {}
        self._compiled: dict[str, Callable[[str], bool]] = {}
        compiled = {} if before is None else before._compiled
        for record in records.values():
            for glob in record.globs:
                matches = self._compiled[glob] = compiled.get(glob) or compile_glob(glob)
                self._globs.setdefault(literal_prefix(glob), []).append((matches, record.mailbox))
            for claim in record.claims:
                for subtopic in claim.subtopics:
                    self._claims.setdefault(subtopic, []).append((claim, record.mailbox))
            for channel in record.channels:
                self._channels[channel] = self._extend(self._channels.get(channel, NOBODY), record.mailbox)
        self._glob_lengths = sorted({len(prefix) for prefix in self._globs})

    def in_version(self, version: int, *, logged: bool) -> "Routes":
        """Return these routes for a later version of the directory in which no mailbox has changed.

        Both objects share their tables, because for a million agents building the tables takes a tenth of a second.
        """
        found = copy(self)
        found.version, found.logged = version, logged
        return found

    def mailboxes(self, route: int) -> tuple[str, ...]:
        """Return the names of the mailboxes to which the route with this number leads."""
        return self.routes[route]

    def mailboxes_of(self, agent_id: AgentId | None, topic: str) -> tuple[str, ...]:
        """Return the mailboxes that get a message to an agent on a topic. The result is cached."""
        key = (agent_id, topic)
        found = self.cached.get(key)
        if found is None:
            ids = IdColumn.of([agent_id])
            batch = Batch(sender="", epoch=0, first=0, from_ids=ids, rows=len(ids), to_ids=ids, topics=(topic,))
            found = self.routes[int(self.route(batch)[0])]
            if len(self.cached) >= _CACHED_ROUTES:
                self.cached.clear()
            self.cached[key] = found
        return found

    def route(self, batch: Batch) -> NDArray[np.int32]:
        """Return, for each message, the number of the route to its mailboxes, as int32 (n,)."""
        if self._globs:
            return self._route_one_by_one(batch)
        if batch.topic is None:
            return self._route_topic(batch.topics[0], batch.to_ids)
        routes = np.zeros(len(batch), np.int32)
        for number, topic in enumerate(batch.topics):
            rows = np.flatnonzero(batch.topic == number)
            if len(rows):
                routes[rows] = self._route_topic(topic, batch.to_ids.take(rows))
        return routes

    def _route_topic(self, topic: str, ids: IdColumn) -> NDArray[np.int32]:
        if topic[0] == ":":
            return np.full(len(ids), self._channels.get(topic[1:], NOBODY), np.int32)
        table = self._table(topic)
        routes = np.zeros(len(ids), np.int32) if table is None else table.look_up(ids.values)
        if ids.kinds is not None:
            routes[ids.kinds != INT] = NOBODY
            names = [self._strings.get((topic, name), NOBODY) for name in ids.strings]
            rows = np.flatnonzero(ids.kinds == STR)
            if len(rows):
                routes[rows] = np.array(names, np.int32)[ids.values[rows]]
        return routes

    def _table(self, topic: str) -> IdTable[np.int32] | None:
        if topic not in self._tables:
            self._tables[topic] = self._build_table(topic)
        return self._tables[topic]

    def _build_table(self, topic: str) -> IdTable[np.int32] | None:
        columns: list[tuple[NDArray[np.int64], str]] = []
        for claim, mailbox in self._claims.get(topic, ()):
            columns.append((np.frombuffer(claim.ints, "<i8"), mailbox))
            for name in claim.strings:
                known = self._strings.get((topic, name), NOBODY)
                self._strings[topic, name] = self._extend(known, mailbox)
        ids = ascending(np.concatenate([ids for ids, _ in columns])) if columns else np.zeros(0, np.int64)
        if not len(ids):
            return None
        routes = np.zeros(len(ids), np.int32)
        for claimed, mailbox in columns:
            places = np.searchsorted(ids, claimed)
            found = routes[places]
            for route in np.flatnonzero(np.bincount(found)).tolist():
                routes[places[found == route]] = self._extend(route, mailbox)
        return IdTable(ids, routes)

    def _extend(self, route: int, mailbox: str) -> int:
        """Return the number of the route that leads to `mailbox`, and to all mailboxes of the given route."""
        if mailbox in self.routes[route]:
            return route
        wider = (*self.routes[route], mailbox)
        if wider not in self._route_ids:
            self._route_ids[wider] = len(self.routes)
            self.routes.append(wider)
        return self._route_ids[wider]

    def _route_one_by_one(self, batch: Batch) -> NDArray[np.int32]:
        """Return, for each message of a batch, the number of the route to its mailboxes.

        This is for the case that mailboxes listen to patterns. The routes are cached by id and topic.
        """
        routes = np.zeros(len(batch), np.int32)
        for row, to_id in enumerate(batch.to_ids.tolist()):
            key = (to_id, batch.topic_of(row))
            route = self._matched.get(key)
            if route is None:
                if len(self._matched) >= _CACHED_ROUTES:
                    self._matched.clear()
                route = self._matched[key] = self._match(*key)
            routes[row] = route
        return routes

    def _match(self, to_id: AgentId | None, topic: str) -> int:
        """Return the number of the route to the mailboxes that listen to a channel, or to a pattern that matches it."""
        route = int(self._route_topic(topic, IdColumn.of([to_id]))[0])
        channel = build_channel(self.exp_id, to_id, topic)
        for length in self._glob_lengths:
            if length > len(channel):
                break
            for matches, mailbox in self._globs.get(channel[:length], ()):
                if matches(channel):
                    route = self._extend(route, mailbox)
        return route


class Directory:
    """Subscriptions of all mailboxes: a copy of one version of the server's directory.

    `routing` has the routes of messages to mailboxes. `read_in` returns the routes of the messages that are read in a
    given step. A sender keeps the `Routes` object that it got from `read_in`: the object does not change when another
    sender asks for the routes of another step.
    """

    def __init__(self, exp_id: str) -> None:
        self.exp_id = exp_id
        self.schemas = Schemas()
        self.audiences = Audiences()
        self.dates = NO_DATES  # with steps: for each move of agents, the first step in which it is valid
        self.routing = Routes(exp_id, {})
        self._in_step = Routes(exp_id, {})  # the result of the last call of `read_in`
        self._steps = range(0)  # the steps in which `_in_step` is valid

    @property
    def version(self) -> int:
        """Return the version of this copy of the directory, or -1 before the first update."""
        return self.routing.version

    @property
    def records(self) -> Mapping[str, MailboxRecord]:
        """Return the newest records, by mailbox."""
        return self.routing.records

    def update(
        self,
        version: int,
        changed: Iterable[MailboxRecord],
        mailboxes: Iterable[str],
        logged: bool = False,  # noqa: FBT001 - callers pass the items of a DirectoryDelta by position
        schemas: Mapping[str, bytes] = NO_SCHEMAS,
        audiences: AudienceTexts = NO_AUDIENCES,
        dates: HostDates = NO_DATES,
    ) -> None:
        """Replace the changed records, and remove mailboxes that are not in `mailboxes`, the names of all mailboxes.

        Args: `version` is the new version of this copy, and `logged` says whether an event log is registered.
        `schemas`, `audiences` and `dates` are as in a DirectoryDelta.
        """
        self.schemas.update(schemas)
        self.audiences.update(audiences)
        found, there, before = list(changed), set(mailboxes), self.routing
        if found or not there.issuperset(before.records) or dates.text != self.dates.text:
            self._steps = range(0)
        self.dates = dates
        if not found and there.issuperset(before.records) and before.version >= 0:
            if (version, logged) != (before.version, before.logged):
                self.routing = before.in_version(version, logged=logged)
                self._in_step = self._in_step.in_version(version, logged=logged)
            return
        records = {**before.records, **{record.mailbox: record for record in found}}
        kept = {name: records[name] for name in sorted(records) if name in there}
        self.routing = Routes(self.exp_id, kept, version, logged=logged, before=before)

    def read_in(self, step: int) -> Routes:
        """Return the routes of messages that are read in a step, with the agents that each mailbox hosts in the step.

        Mailboxes that host no agents are left out, because nobody would read a step's messages there.
        """
        if step not in self._steps:
            hosting = [record for record in self.records.values() if record.exclusive]
            records = {record.mailbox: record.at(step, self.dates) for record in hosting}
            dates = {self.dates.since(change.version) for record in hosting for change in record.changes}
            self._steps = range(step, min((since for since in dates if since > step), default=_NO_STEP))
            before, version, logged = self._in_step, self.version, self.routing.logged
            same = records.keys() == before.records.keys() and all(
                record is before.records[name] for name, record in records.items()
            )
            if same:
                self._in_step = before.in_version(version, logged=logged)
            else:
                self._in_step = Routes(self.exp_id, records, version, logged=logged, before=before)
        return self._in_step

    def owner_of(self, agents: Iterable[AgentId], *, besides: str) -> tuple[AgentId, str] | None:
        """Return one of these agents that belongs to an exclusive mailbox other than `besides`, and this mailbox.

        Return None if there is no such agent.
        """
        asked = AgentSet.of(agents)
        for record in self.records.values():
            if record.exclusive and record.mailbox != besides:
                taken = asked & record.agents()
                if taken:
                    return min(taken, key=str), record.mailbox
        return None
