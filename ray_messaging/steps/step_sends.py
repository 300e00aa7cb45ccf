"""The messages that a group sends in one step, as batches, and their routes (topic, step of delivery, kind)."""

import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from struct import pack
from threading import get_ident
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from orjson import dumps

from ray_messaging.addressing.channels import AGENT_CHAT, INT64_MAX, INT64_MIN, AgentId, check_id, check_subtopic
from ray_messaging.audiences.audience_kinds import Audiences
from ray_messaging.audiences.cache import current_audience, name_of
from ray_messaging.conversations.replies import answer_topic, replies_to
from ray_messaging.default_limits_and_leases import BATCH_ROWS
from ray_messaging.errors import Closed, ConfigError, UnknownSender
from ray_messaging.messages import Slice
from ray_messaging.model.batch import Batch, TopicColumn, topic_column
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload, nobody
from ray_messaging.model.extension import UNRESOLVED, AskedOutside, AudiencePairs, Extension, OutsideQuestion
from ray_messaging.model.finite import MAYBE_NULL, NULL
from ray_messaging.model.json_form import LARGE, LINE_END, MAYBE_LARGE, PLAIN
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.model.whole_numbers import delivery_step
from ray_messaging.sending.bulk_input import ColumnChunk, columns_of
from ray_messaging.steps.agent_places import AgentPlaces

_NOBODY = object()
_FIXED = int, str, np.generic  # types of ids that cannot change: the same object always has the same value
_NO_QUESTION = None, None
_CELLS = 2  # `_runs` has this many items for each run
SMALL = 2**30 - 1  # Python compares ints up to this one in a third of the time that larger ints take
Numbers = NDArray[np.int64]


class Route(NamedTuple):
    """The facts that some messages of a step have in common: topic, step of delivery, kind.

    With an `audience`, the messages are broadcasts to the audience. With `asks`, the messages are questions. With
    `replies`, the messages are answers. If `asker` is not "", the questions came from outside of the steps, and `asker`
    is the mailbox that gets the answers.
    """

    topic: str
    deliver: int
    asks: bool = False
    replies: bool = False
    asker: str = ""
    audience: AudiencePairs | None = None

    @property
    def lane(self) -> "Route":
        """Return the facts that all messages of one batch must have in common, as a route.

        For broadcasts, these are all facts of the route. For other messages, they are the step of delivery and `asker`.
        Only answers to questions from outside of the steps have an asker, so other answers may be in a batch with
        messages that are no answers.
        """
        return self if self.audience is not None else self._replace(topic="", asks=False, replies=bool(self.asker))


class RowRoutes(NamedTuple):
    """The topics and kinds of the messages of one batch. `lane` has the facts that are the same for all messages.

    `topic` has, for each message, an index into `topics`, or is None if there is only one topic. `asks` says which
    messages are questions, or is None if no message is.
    """

    lane: Route
    topics: tuple[str, ...]
    topic: TopicColumn | None
    asks: NDArray[np.bool_] | None

    @classmethod
    def same(cls, route: Route, rows: int) -> "RowRoutes":
        """Return the `RowRoutes` of a batch in which all messages have the same topic, step and kind."""
        return cls(route.lane, (route.topic,), None, np.ones(rows, np.bool_) if route.asks else None)

    @classmethod
    def of(cls, routes: Sequence[Route], numbers: Numbers) -> "RowRoutes":
        """Return the topics and kinds of messages that may be in one batch.

        Args: `numbers` has, for each message, the index of its route in `routes`.
        """
        used, places = np.unique(numbers, return_inverse=True)
        found = [routes[number] for number in used.tolist()]
        if len(found) == 1:
            return cls.same(found[0], len(numbers))
        topics = {route.topic: None for route in found}
        table = {name: place for place, name in enumerate(topics)}
        topic = topic_column([table[route.topic] for route in found], len(table))[places] if len(table) > 1 else None
        asks = np.array([route.asks for route in found])[places]
        return cls(found[0].lane, tuple(table), topic, asks if asks.any() else None)

    def part(self, low: int, high: int) -> "RowRoutes":
        """Return the routes (topic, step and kind) of the messages from `low` to before `high`."""
        topics, topic = self.topics, None if self.topic is None else self.topic[low:high]
        # A frame contains all topics of its batch. So if there are more topics than messages, topics that no message
        # has are left out.
        if topic is not None and len(topics) > len(topic):
            used, places = np.unique(topic, return_inverse=True)
            topics, topic = tuple(topics[place] for place in used.tolist()), topic_column(places, len(used))
        return RowRoutes(self.lane, topics, topic, None if self.asks is None else self.asks[low:high])


class Replied(NamedTuple):
    """The questions that messages of a step answer.

    `ids` has the question's id for each message, or None for a message that is no answer. `outside` has, for answers to
    questions that were asked outside of the steps, the asker's mailbox, and the id that the question has there.
    """

    ids: MessageIdColumn
    outside: AskedOutside

    @classmethod
    def of(cls, replies: Sequence[tuple[str | None, OutsideQuestion | None]]) -> "Replied":
        """Build a `Replied` from a pair for each reply: the question's id, and the question if it came from outside."""
        outside = {row: asked for row, (_, asked) in enumerate(replies) if asked is not None}
        return cls(MessageIdColumn.of([question for question, _ in replies]), outside)

    def take(self, rows: NDArray[np.intp]) -> "Replied":
        """Return the questions that the messages in the given rows answer."""
        named = {at: self.outside[row] for at, row in enumerate(rows.tolist()) if row in self.outside}
        return Replied(self.ids.take(rows), named if self.outside else {})


class StepSends:
    """The messages of one attempt at a step. A sender's messages in the step have the ordinals 0, 1, 2 and so on.

    Single messages are kept in a list until there are enough for a batch. Equal payloads are in a batch only once. A
    sender or subtopic that successive messages have in common is checked only once.

    Args: `horizon` is how many steps ahead a message may be sent.
    """

    def __init__(
        self,
        agents: AgentPlaces,
        step: int,
        attempt: int,
        horizon: int,
        payload_bytes: int,
        audiences: Audiences,
        group: str,
    ) -> None:
        self.step = step
        self.agents = agents
        self._group = group
        self._attempt = attempt
        self.horizon = horizon
        self._payload_bytes = payload_bytes
        self.audiences = audiences
        # For each agent, the number of its messages that are in `_batches`.
        self._sent = np.zeros(len(agents), np.int64)
        self._batches: list[Batch] = []
        # The number of each distinct payload. The key is the payload's bytes. For a payload that contains null, the key
        # is a tuple of these bytes, which `begin_run` cannot find, because it looks up bytes. If `begin_run` found the
        # payload, it would accept a payload with NaN, too, which is also encoded as null.
        self._lines: dict[bytes | tuple[bytes], int] = {}
        # The recipient of each single message that is not in a batch yet. None: the message is a broadcast, or answers
        # a question of the user outside of the simulation.
        self.to_ids: list[AgentId | None] = []
        self.from_places: list[int] = []  # for each message in `to_ids`, the index of its sender in `agents`
        # A run is successive messages with the same payload. Two items for each run: the number of its first message,
        # and the number of its payload.
        self._runs: list[int] = []
        # The payload of the last run. A next message with this payload joins the run. b"": no message can join a run.
        self.line = b""
        self._routes: dict[Route, int] = {}  # the routes, each with its index
        # Two items for each message whose route may differ from that of the message before it: the message's number,
        # and the index of its route.
        self._routed = array("q")
        # For each message that is an answer, by the message's number: the id of its question, and the question itself
        # if it came from outside of the steps, otherwise None.
        self._replies: dict[int, tuple[str, OutsideQuestion | None]] = {}
        # How often each agent occurs among the first n items of `from_places`, and n. `_next_ordinal` keeps both, so
        # that its next call need count only the later items.
        self._counted: tuple[Counter[int], int] = Counter(), 0
        # The last message's sender, subtopic and step of delivery, as the caller passed them, and the sender's index in
        # `agents`. If the caller passes the same objects for the next message, they are not checked again.
        self._from_id: object = _NOBODY
        self._place = -1
        self.subtopic: object = _NOBODY
        self.deliver_at: object = None
        self._over = False
        self.thread: int | None = None  # the thread that has made the first send

    def send(
        self,
        from_id: AgentId,
        to_id: AgentId,
        payload: object,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
        place: int | None = None,
    ) -> None:
        """Send one message, which is read in the next step or in step `deliver_at`.

        Args: `place` is the sender's place among the agents, if the caller knows it; then `from_id` is not looked up.
        Raises: UnknownSender for a from_id that is not an agent of the group; InvalidAddress for an invalid id or
        subtopic; InvalidPayload or PayloadTooLarge for an invalid payload; ConfigError for a `deliver_at` that is not a
        later step or is too far ahead, and for a send from a second thread; Closed if the step has ended.
        """
        if place is None:
            if from_id is not self._from_id or len(self.to_ids) >= BATCH_ROWS:
                self._check_sending()
                self._place = self._place_of(from_id)
                self._from_id = from_id if isinstance(from_id, _FIXED) else _NOBODY
            place = self._place
        elif get_ident() != self.thread or len(self.to_ids) >= BATCH_ROWS:
            self._check_sending()
        if subtopic is not self.subtopic or deliver_at is not self.deliver_at:
            self.check_open()
            self._take_route(Route(check_subtopic(subtopic), self._deliver(deliver_at)))
            self.subtopic, self.deliver_at = subtopic, deliver_at
        # For most messages, the next lines do the work of `check_id` and `encode_payload` without calling these
        # functions, because each call would add a tenth to the time of a send.
        if type(payload) is dict and type(to_id) is int and INT64_MIN <= to_id <= INT64_MAX:
            try:
                line = dumps(payload, None, PLAIN)
                if line == self.line or self.begin_run(line):
                    self.to_ids.append(to_id)
                    self.from_places.append(place)
                    return
            except Exception:  # noqa: BLE001, S110 - for invalid input the full checks below raise
                pass
        recipient, line = check_id(to_id), encode_payload(payload, self._payload_bytes)
        self._append(line, recipient, place)

    def begin_run(self, line: bytes) -> bool:
        """Let the next messages have the payload that orjson has encoded as `line`; return whether that was possible.

        It is not possible if the payload needs the checks of `encode_payload`, because of its size or its content.
        """
        number = self._lines.get(line)
        if number is None:
            if (
                len(line) > self._payload_bytes
                or (MAYBE_NULL in line and line.find(NULL) >= 0)
                or (MAYBE_LARGE in line and line.find(LARGE) >= 0)
                or LINE_END in line
            ):
                return False
            number = self._lines[line] = len(self._lines)
        self._runs += (len(self.to_ids), number)
        self.line = line
        return True

    def ask(
        self, from_id: AgentId, to_id: AgentId, payload: object, subtopic: str, deliver_at: int | None = None
    ) -> str:
        """Send a question; return its id. Raises the same errors as `send`."""
        recipient, line = check_id(to_id), encode_payload(payload, self._payload_bytes)
        route = Route(check_subtopic(subtopic), self._deliver(deliver_at), asks=True)
        place = self._begin_apart(from_id, route)
        ordinal = self._next_ordinal(place)
        self._append(line, recipient, place)
        return question_id(self.step, ordinal, check_id(from_id))

    def reply(self, question: Slice, payload: object, exp_id: str, deliver_at: int | None = None) -> None:
        """Answer a question, given as a slice of one row of a batch; raise the same errors as `send`."""
        batch, row = question.batch, question.low
        line, to_id, from_id = encode_payload(payload, self._payload_bytes), batch.from_ids[row], batch.to_ids[row]
        topic = answer_topic(batch, row, exp_id)
        outside = None if batch.extension is None else batch.extension.asked_outside.get(row)
        asker = "" if outside is None else outside.mailbox
        place = self._begin_apart(from_id, Route(topic, self._deliver(deliver_at), replies=True, asker=asker))
        self._replies[len(self.to_ids)] = batch.message_id(row), outside
        self._append(line, to_id, place)

    def broadcast(
        self, from_id: AgentId, audience: object, payload: object, subtopic: str, deliver_at: int | None = None
    ) -> None:
        """Send one message of the agent `from_id` to all agents that hear it according to an audience.

        Raises: the same errors as `send`; UnknownName for an audience that does not exist.
        """
        line = encode_payload(payload, self._payload_bytes)
        place = self._begin_apart(from_id, self._broadcast_route(audience, subtopic, deliver_at))
        self._append(line, None, place)

    def _broadcast_route(self, audience: object, subtopic: str, deliver_at: int | None) -> Route:
        self.check_open()
        if self.audiences:
            found = current_audience(self.audiences, audience, self.step)
        else:  # the audience is looked up at the end of the step, because this process's directory may not have it yet
            found = AudiencePairs(name_of(audience), UNRESOLVED)
        return Route(check_subtopic(subtopic), self._deliver(deliver_at), audience=found)

    def add_broadcasts(
        self, from_ids: object, audience: object, payloads: object, subtopic: str, deliver_at: int | None
    ) -> None:
        """Send broadcasts given as columns.

        Raises: the same errors as `broadcast`; InvalidColumns if the columns do not fit together. After an error,
        nothing is sent.
        """
        self._add_columns(from_ids, 0, payloads, self._broadcast_route(audience, subtopic, deliver_at))

    def add_replies(self, question: Slice, payloads: object, exp_id: str, deliver_at: int | None) -> None:
        """Answer questions, given as a slice of a batch.

        Raises: the same errors as `send`; InvalidColumns if the payloads do not fit the questions. After an error, no
        question is answered.
        """
        self.check_open()
        self._check_thread()
        self._close_rows()
        deliver, asked = self._deliver(deliver_at), question.batch.extension
        [batch] = replies_to([question], payloads, exp_id, self._payload_bytes, self.step)
        places = self._places(batch.from_ids)
        assert batch.extension is not None
        assert batch.extension.in_reply_to is not None
        assert batch.lines is not None
        outside = {} if asked is None else asked.outside_of(np.arange(question.low, question.high))
        columns = ColumnChunk(batch.from_ids, batch.to_ids, batch.lines)
        ordinals, replied = self._ordinals(places), Replied(batch.extension.in_reply_to, outside)
        routes, numbers = routes_of(batch, outside, deliver)
        for rows in rows_in_order(places, numbers, routes):
            found = RowRoutes.of(routes, numbers[rows])
            self._add(columns.take(rows), found, ordinals[rows], replied.take(rows))

    def add_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        subtopic: str,
        deliver_at: int | None = None,
        *,
        asks: bool = False,
    ) -> tuple[list[IdColumn], list[NDArray[np.uint32]]]:
        """Send n messages given as columns; return their senders and their ordinals, each as a list of columns.

        A message's ordinal is its number among its sender's messages in the step, counted from 0.

        Raises: the same errors as `send`; InvalidColumns if the columns do not fit together. After an error, nothing is
        sent.
        """
        route = Route(check_subtopic(subtopic), self._deliver(deliver_at), asks=asks)
        return self._add_columns(from_ids, to_ids, payloads, route)

    def _add_columns(
        self, from_ids: object, to_ids: object, payloads: object, route: Route
    ) -> tuple[list[IdColumn], list[NDArray[np.uint32]]]:
        self.check_open()
        self._check_thread()
        self._close_rows()
        chunks = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        found = [self._places(chunk.from_ids) for chunk in chunks]
        now = time.time()  # all messages get one time, so that a receiver need not reorder a column of times
        ordinals = [self._ordinals(places) for places in found]
        for chunk, numbers in zip(chunks, ordinals, strict=True):
            self._add(chunk, RowRoutes.same(route, len(numbers)), numbers, sent_at=now)
        return [chunk.from_ids for chunk in chunks], ordinals

    def _check_thread(self) -> None:
        """Raise ConfigError if another thread made the first send, because several threads send in a random order."""
        thread = get_ident()
        if self.thread is None:
            self.thread = thread
        elif self.thread != thread:
            raise ConfigError(
                f"step {self.step} has sent messages from another thread, but can send from one thread only. To use "
                "more "
                "processors, spread the agents over more groups"
            )

    def batches(self) -> list[Batch]:
        """Return the messages that were sent so far, as batches."""
        self._close_rows()
        return [*self._batches]

    def take(self) -> list[Batch]:
        """Return all messages of the step as batches, and refuse later messages."""
        self._over = True
        self._close_rows()
        batches, self._batches = self._batches, []
        return batches

    def end(self) -> None:
        """Refuse messages from now on, because they would be lost."""
        self._over, self._from_id, self.subtopic = True, _NOBODY, _NOBODY

    def check_open(self) -> None:
        """Raise Closed if the step is over."""
        if self._over:
            raise Closed(f"step {self.step} is over: send, and set the state, in the step that the loop yields now")

    def _append(self, line: bytes, to_id: AgentId | None, place: int) -> None:
        key = line if line.find(NULL) < 0 else (line,)
        self._runs += (len(self.to_ids), self._lines.setdefault(key, len(self._lines)))
        self.to_ids.append(to_id)
        self.from_places.append(place)
        self.line = b""

    def _begin_apart(self, from_id: AgentId | None, route: Route) -> int:
        """Prepare to send one message that does not belong to a column; return the sender's index among the agents.

        Raises: the same errors as `send`, except the errors about the payload.
        """
        self._check_sending()
        place = self._place_of(from_id)
        self._take_route(route)
        return place

    def _check_sending(self) -> None:
        if self._over:
            self.check_open()
        if get_ident() != self.thread:
            self._check_thread()
        if len(self.to_ids) >= BATCH_ROWS:
            self._close_rows()

    def _take_route(self, route: Route) -> None:
        """Set the route (topic, step of delivery and kind) of all messages that follow, until another route is set."""
        number = len(self.to_ids)  # the number of the next message
        self._routed.extend((number, self._routes.setdefault(route, len(self._routes))))
        self.subtopic = _NOBODY

    def _place_of(self, from_id: AgentId | None) -> int:
        place = self.agents.place(from_id if type(from_id) is int else check_id(from_id))
        if place < 0:
            raise self._not_ours(check_id(from_id))
        return place

    def check_ours(self, ids: IdColumn) -> None:
        """Raise UnknownSender if an id is not an agent of the group."""
        self._places(ids)

    def _places(self, from_ids: IdColumn) -> NDArray[np.int64]:
        places = self.agents.find(from_ids)
        if places.min(initial=0) < 0:
            raise self._not_ours(from_ids[int(np.argmin(places))])
        return places

    def _next_ordinal(self, place: int) -> int:
        """Return the ordinal of an agent's next message: the number of messages that the agent has sent in the step."""
        counts, done = self._counted
        counts.update(self.from_places[done:])
        self._counted = counts, len(self.from_places)
        return int(self._sent[place]) + counts[place]

    def _ordinals(self, places: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the ordinal of each row, and count the row as sent by its agent.

        The n-th message of an agent in a step has ordinal n, counted from 0. `places` has the index of each row's
        agent.
        """
        ordinals, rows = self._sent[places], np.arange(len(places))
        self._sent[places] = rows
        # If an agent has several rows, a later row has overwritten the entry of an earlier row.
        if (self._sent[places] != rows).any():
            # numpy sorts 16-bit numbers by radix sort, which is faster.
            order = np.argsort(places.astype(np.uint16) if len(self._sent) <= 2**16 else places, kind="stable")
            run = places[order]
            begins = np.flatnonzero(np.concatenate([[True], run[1:] != run[:-1]]))
            ordinals[order] += rows - np.repeat(begins, np.diff(begins, append=len(run)))
        # If an agent has several rows, only the assignment of its last row remains, which has the highest ordinal.
        self._sent[places] = ordinals + 1
        return ordinals.astype(np.uint32)

    def _close_rows(self) -> None:
        """Put the single messages that are not in a batch yet into batches."""
        if not self.to_ids:
            return
        to_ids, runs, lines, routes, routed = self.to_ids, self._runs, self._lines, self._routes, self._routed
        senders, self.from_places = self.from_places, []
        self.to_ids, self._runs, self._lines, self.line = [], [], {}, b""
        self._routes, self._routed, self._from_id, self.subtopic = {}, array("q"), _NOBODY, _NOBODY
        replies, self._replies, self._counted = self._replies, {}, (Counter(), 0)
        count = len(to_ids)
        # `pack` is twice as fast as numpy.
        firsts, numbers = np.frombuffer(pack(f"={len(runs)}q", *runs), np.int64).reshape(-1, _CELLS).T
        places = np.frombuffer(pack(f"={count}q", *senders), np.int64)
        ordinals = self._ordinals(places)
        index = numbers.astype(np.uint32).repeat(np.diff(firsts, append=count)) if len(lines) < count else None
        payloads = PayloadColumn.of([line if isinstance(line, bytes) else line[0] for line in lines], index)
        columns = ColumnChunk(self.agents.column.take(places), IdColumn.of(to_ids), payloads)
        listed = [*routes]
        if len(listed) == 1 and not replies:
            self._add(columns, RowRoutes.same(listed[0], count), ordinals)
            return
        starts, kinds = np.frombuffer(routed, np.int64).reshape(-1, 2).T
        of_row = kinds.repeat(np.diff(starts, append=count))
        for rows in rows_in_order(places, of_row, listed):
            among = rows.tolist() if replies else []
            replied = None
            if not replies.keys().isdisjoint(among):
                replied = Replied.of([replies.get(row, _NO_QUESTION) for row in among])
            self._add(columns.take(rows), RowRoutes.of(listed, of_row[rows]), ordinals[rows], replied)

    def _add(
        self,
        columns: ColumnChunk,
        routes: RowRoutes,
        ordinals: NDArray[np.uint32],
        replied: Replied | None = None,
        sent_at: float | None = None,
    ) -> None:
        """Add messages as batches of a size that a frame may have."""
        lane, low = routes.lane, 0
        for chunk in columns.within_limits():
            high = low + len(chunk.from_ids)
            some, numbers = routes.part(low, high), ordinals[low:high]
            extension = Extension(
                attempt=self._attempt, deliver=lane.deliver, ordinal=numbers, expects_answer=some.asks
            )
            if lane.audience is not None:
                extension.audience, chunk = lane.audience, chunk._replace(to_ids=nobody(len(numbers)))  # noqa: PLW2901
            if replied is not None:
                answered = replied.take(np.arange(low, high))
                extension.in_reply_to, extension.reply_mailbox = answered.ids, lane.asker
                extension.asked_outside = answered.outside if lane.asker else {}
            batch = chunk.batch(some.topics, self.step, time.time() if sent_at is None else sent_at, extension)
            batch.topic = some.topic
            self._batches.append(batch)
            low = high

    def _deliver(self, deliver_at: int | None) -> int:
        return delivery_step(deliver_at, self.step, self.horizon)

    def _not_ours(self, from_id: Any) -> UnknownSender:  # noqa: ANN401 - any id
        return UnknownSender(
            f"from_id {from_id!r} is not an agent of this group, and in a step a group sends only for its own "
            "agents: let the group of that agent send",
            value=from_id,
            group=self._group,
        )


def rows_in_order(senders: Numbers, numbers: Numbers, routes: Sequence[Route]) -> Iterator[NDArray[np.intp]]:
    """Divide rows with different routes into batches; yield the rows of each batch.

    The route of a message is its topic, its step of delivery and its kind. Some of these facts must be the same in a
    whole batch (see `Route.lane`). The rows of a sender keep their order over the batches. So rules judge a sender's
    messages in the order of sending, whatever other agents are in the sender's group.

    Args: `senders` (n,) has the sender of each row; `numbers` (n,) has the index of the row's route in `routes`.
    """
    lanes: dict[Route, int] = {}
    lane = np.array([lanes.setdefault(route.lane, len(lanes)) for route in routes])[numbers]
    # A lane is what all messages of a batch have in common. Batches are made in rounds. A round has one batch for each
    # lane, and the lanes have a fixed order. If a sender's next row has a lane that comes before the lane of the
    # sender's previous row, the next row waits for the next round.
    order = np.argsort(senders, kind="stable")
    sender, along = senders[order], lane[order]
    begins = np.diff(sender, prepend=-1) != 0
    rounds = np.cumsum((np.diff(along, prepend=0) < 0) & ~begins)
    firsts = np.flatnonzero(begins)
    rounds -= rounds[firsts].repeat(np.diff(firsts, append=len(order)))
    batch = np.empty(len(order), np.int64)
    batch[order] = rounds * len(lanes) + along
    rows = np.argsort(batch, kind="stable")
    yield from np.split(rows, np.flatnonzero(np.diff(batch[rows])) + 1)


class StepQuestionIds(Sequence[str]):
    """The ids of the questions that one call of `ask_columns` has asked, in the order of the columns."""

    def __init__(self, step: int, from_ids: IdColumn, ordinals: NDArray[np.uint32]) -> None:
        self._step = step
        self._from_ids = from_ids
        self._ordinals = ordinals

    def __len__(self) -> int:
        return len(self._ordinals)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        """Return the id of one question, or a list of ids for a slice."""
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        return question_id(self._step, int(self._ordinals[row]), self._from_ids[row])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} questions of step {self._step})"


def routes_of(replies: Batch, outside: AskedOutside, deliver: int) -> tuple[list[Route], Numbers]:
    """Return the routes of answers that are read in step `deliver`, and, for each answer, the index of its route.

    A route is what messages have in common: topic, step and kind.
    """
    topics = np.zeros(replies.rows, np.int64) if replies.topic is None else replies.topic.astype(np.int64)
    if not outside:
        used, numbers = np.unique(topics, return_inverse=True)
        return [Route(replies.topics[place], deliver, replies=True) for place in used.tolist()], numbers
    askers = [outside[row].mailbox if row in outside else "" for row in range(replies.rows)]
    found: dict[tuple[int, str], int] = {}
    numbers = np.array([found.setdefault(key, len(found)) for key in zip(topics.tolist(), askers, strict=True)])
    return [Route(replies.topics[place], deliver, replies=True, asker=asker) for place, asker in found], numbers


def question_id(step: int, ordinal: int, from_id: object) -> str:
    """Return the id of a message of a step, in the same form as `Batch.message_id`."""
    return f"{step}-{ordinal}-{from_id}"
