"""The messages that a group sends in one step, as batches."""

import time
from array import array
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, INT64_MAX, INT64_MIN, AgentId, check_id, check_subtopic
from ray_messaging.common.limits import BATCH_ROWS
from ray_messaging.errors import Closed, ConfigError, UnknownSender
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import LINE_END, IdColumn, PayloadColumn, encode_dict, encode_payload
from ray_messaging.model.extension import Extension
from ray_messaging.sending.accumulation.bulk_input import ColumnChunk, columns_of
from ray_messaging.sending.accumulation.pending_batch import ColumnBatch, EncodedBatch
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.step_parts import PartTag, StepParts

_NOBODY = object()


class StepSends:
    """The messages of one attempt at a step. Each has an ordinal: it is the n-th of its sender in the step.

    Single messages are kept as lists until there are enough for a batch. Those that follow each other from one sender
    under one subtopic are a run, and only the first one's sender and subtopic are looked at.

    Args: `horizon` is how many steps ahead a message may be sent. `tag` names a part of the step (None: this is all of
    it), `sent` counts the messages of each of its agents before the split.
    """

    def __init__(
        self,
        agents: AgentPlaces,
        step: int,
        attempt: int,
        horizon: int,
        payload_bytes: int,
        tag: PartTag | None = None,
        sent: NDArray[np.int64] | None = None,
    ) -> None:
        self.tag, self.step = tag, step
        self._parts: StepParts[StepSends] | None = None
        self.agents = agents
        self._attempt = attempt
        self.horizon = horizon
        self._payload_bytes = payload_bytes
        self._sent = np.zeros(len(agents), np.int64) if sent is None else sent.copy()  # by an agent's place
        self._batches: list[ColumnBatch | EncodedBatch] = []
        self._to_ids: list[AgentId] = []
        self._lines: list[bytes] = []
        self._runs = array("q")  # of each run: its first message, the place of its sender, and that of its route
        self._routes: dict[tuple[str, int], int] = {}  # subtopic and step of delivery, each with its place
        # The last run, as it was given.
        self._from_id: object = _NOBODY
        self._subtopic: object = None
        self._deliver_at: object = None
        self._route = 0
        self._over = False
        self._thread: int | None = None  # that sends

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self.agents, self.step, self._attempt, self.horizon, self._payload_bytes)
        return _revived, (*settings, self.tag, self._sent, self._sealed())

    def send(
        self,
        from_id: AgentId,
        to_id: AgentId,
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send one message, to be read in the next step or in `deliver_at`.

        Raises: UnknownSender for a from_id that is none of these agents, InvalidAddress, InvalidPayload,
        PayloadTooLarge, ConfigError for a `deliver_at` that is over or too far ahead, Closed after the step,
        InvalidParts while the step's parts are out.
        """
        if from_id is not self._from_id or subtopic is not self._subtopic or deliver_at is not self._deliver_at:
            self._begin_run(from_id, subtopic, deliver_at)
        # The common case of `check_id` and `encode_payload`, inlined: a call costs a tenth of the whole send.
        recipient = to_id if type(to_id) is int and INT64_MIN <= to_id <= INT64_MAX else check_id(to_id)
        try:
            line = encode_dict(payload) if type(payload) is dict else b""
        except Exception:  # noqa: BLE001 - bad input: the full check finds out
            line = b""
        if not 0 < len(line) <= self._payload_bytes or LINE_END in line:
            line = encode_payload(payload, self._payload_bytes)
        self._lines.append(line)
        self._to_ids.append(recipient)

    def add_columns(
        self, from_ids: object, to_ids: object, payloads: object, subtopic: str, deliver_at: int | None = None
    ) -> None:
        """Add n messages given as columns; raises as `send`, and InvalidColumns, before any of them is added."""
        self._check_whole()
        self._check_thread()
        self._close_rows()
        deliver, topic = self._deliver(deliver_at), check_subtopic(subtopic)
        chunks = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        found = [self.agents.find(chunk.from_ids) for chunk in chunks]
        for chunk, places in zip(chunks, found, strict=True):
            if places.min(initial=0) < 0:
                raise self._not_ours(chunk.from_ids[int(np.argmin(places))])
        now = time.time()  # one for all: the receiver need not sort equal times
        for chunk, places in zip(chunks, found, strict=True):
            self._add(chunk.from_ids, chunk.to_ids, chunk.lines, topic, deliver, self._ordinals(places), now)

    # -- parts ----------------------------------------------------------------------------------------------------

    def split(self, n: int) -> list[tuple[slice, "StepSends"]]:
        """Return at most n parts, each with the places of its agents. Only they can send, until all are joined.

        Raises: InvalidParts, Closed.
        """
        self._check_whole()
        self._close_rows()
        self._parts = StepParts(self.step)
        settings = (self.step, self._attempt, self.horizon, self._payload_bytes)
        return [
            (at, StepSends(self.agents.part(at.start, at.stop), *settings, tag, self._sent[at]))
            for tag, at in self._parts.split(len(self.agents), n).items()
        ]

    def join(self, parts: Sequence["StepSends"]) -> None:
        """Take over the messages of some parts; raise InvalidParts, Closed before any is taken."""
        self.check_open()
        for places, part in (self._parts or StepParts(self.step)).join(parts):
            self._sent[places] = part._sent
            self._batches += part._sealed()
            part.end()

    def _check_whole(self) -> None:
        """Raise Closed where the step is over, InvalidParts while its parts are out."""
        self.check_open()
        if self._parts is not None:
            self._parts.check_whole()

    def _check_thread(self) -> None:
        """Raise ConfigError in another thread than that of the first send: the order of sends would be by chance."""
        thread = get_ident()
        if self._thread is None:
            self._thread = thread
        elif self._thread != thread:
            raise ConfigError(
                f"step {self.step} has sent from another thread: send from one, and give other threads parts of the "
                "step, by `step.split(n)`"
            )

    def batches(self) -> list[Batch]:
        """Return the messages so far, with their payloads as one blob, which pickles fast."""
        self._close_rows()
        batches = [batch.seal("", 0, 0) for batch in self._batches]
        for batch in batches:
            assert batch.lines is not None
            batch.lines.pack()
        return batches

    def _sealed(self) -> list[EncodedBatch]:
        return [EncodedBatch(step=self.step, batch=batch) for batch in self.batches()]

    def take(self) -> list[ColumnBatch | EncodedBatch]:
        """Return the batches, and forget them; the step is over. Raises InvalidParts while parts are out."""
        if self._parts is not None:
            self._parts.check_whole()
        self._over = True
        self._close_rows()
        batches, self._batches = self._batches, []
        return batches

    def end(self) -> None:
        """Refuse all that comes later: it would be lost."""
        self._over, self._from_id = True, _NOBODY

    def check_open(self) -> None:
        """Raise Closed where the step is over."""
        if self._over:
            over = f"step {self.step} is over" if self.tag is None else f"{self.tag} of step {self.step} was joined"
            raise Closed(f"{over}: send, and set the state, in the step that the loop yields now")

    @property
    def rows(self) -> int:
        """Return how many messages were added."""
        return int(self._sent.sum()) + len(self._lines)

    def _begin_run(self, from_id: AgentId, subtopic: str, deliver_at: int | None) -> None:
        """Begin a run of messages of one sender; raise InvalidAddress, UnknownSender, ConfigError, Closed."""
        self._check_whole()
        self._check_thread()
        if len(self._lines) >= BATCH_ROWS:
            self._close_rows()
        route = self._route  # most often that of the last run
        if subtopic is not self._subtopic or deliver_at is not self._deliver_at or not self._routes:
            given = check_subtopic(subtopic), self._deliver(deliver_at)
            route = self._routes.setdefault(given, len(self._routes))
        place = self.agents.place(check_id(from_id))
        if place < 0:
            raise self._not_ours(from_id)
        self._runs.extend((len(self._lines), place, route))
        self._from_id, self._subtopic, self._deliver_at, self._route = from_id, subtopic, deliver_at, route

    def _ordinals(self, places: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return which send of its agent each row is, and count them."""
        ordinals, rows = self._sent[places], np.arange(len(places))
        self._sent[places] = rows
        if (self._sent[places] != rows).any():  # some agents have several rows: the later one has overwritten the place
            order = np.argsort(places, kind="stable")
            run = places[order]
            begins = np.flatnonzero(np.diff(run, prepend=-1))
            ordinals[order] += rows - np.repeat(begins, np.diff(begins, append=len(run)))
        self._sent[places] = ordinals + 1  # of an agent's rows the last one is written last, and is the highest
        return ordinals.astype(np.uint32)

    def _close_rows(self) -> None:
        """Make batches of the single messages."""
        runs, to_ids, lines, routes = self._runs, self._to_ids, self._lines, self._routes
        self._runs, self._to_ids, self._lines, self._routes, self._from_id = array("q"), [], [], {}, _NOBODY
        if not lines:
            return
        starts, senders, numbers = np.frombuffer(runs, np.int64).reshape(-1, 3).T
        lengths = np.diff(starts, append=len(lines))
        places = senders.repeat(lengths)
        ordinals = self._ordinals(places)
        columns = ColumnChunk(self.agents.column.take(places), IdColumn.of(to_ids), PayloadColumn.of(lines))
        if len(routes) == 1:
            self._add_chunks(columns, *next(iter(routes)), ordinals)
            return
        of_row = numbers.repeat(lengths)
        for route, number in routes.items():
            rows = np.flatnonzero(of_row == number)
            if len(rows):  # else the first one was refused
                self._add_chunks(columns.take(rows), *route, ordinals[rows])

    def _add_chunks(self, columns: ColumnChunk, topic: str, deliver: int, ordinals: NDArray[np.uint32]) -> None:
        low = 0
        for chunk in columns.within_limits():
            high = low + len(chunk.from_ids)
            self._add(*chunk, topic, deliver, ordinals[low:high])
            low = high

    def _add(
        self,
        from_ids: IdColumn,
        to_ids: IdColumn,
        lines: PayloadColumn,
        topic: str,
        deliver: int,
        ordinals: NDArray[np.uint32],
        sent_at: float | None = None,
    ) -> None:
        extension = Extension(attempt=self._attempt, deliver=deliver, ordinal=ordinals)
        self._batches.append(
            ColumnBatch(
                step=self.step,
                from_ids=from_ids,
                to_ids=to_ids,
                topic=topic,
                lines=lines,
                sent_at=time.time() if sent_at is None else sent_at,
                extension=extension,
            )
        )

    def _deliver(self, deliver_at: int | None) -> int:
        """Return the step in which a message is read; raise ConfigError."""
        if deliver_at is None:
            return self.step + 1
        low, high = self.step + 1, self.step + self.horizon
        if (
            isinstance(deliver_at, bool)
            or not isinstance(deliver_at, int | np.integer)
            or not low <= deliver_at <= high
        ):
            raise ConfigError(
                f"deliver_at={deliver_at!r} in step {self.step}: a message can be read from step {low} on, and at "
                f"most {self.horizon} steps ahead, in step {high}"
            )
        return int(deliver_at)

    def _not_ours(self, from_id: Any) -> UnknownSender:  # noqa: ANN401 - any id
        who = "group" if self.tag is None else f"part ({self.tag})"
        return UnknownSender(
            f"from_id {from_id!r} is no agent of this {who}: in a step it sends for its own agents", value=from_id
        )


def _revived(*arguments: Any) -> StepSends:  # noqa: ANN401 - as StepSends takes them, and the batches
    *settings, batches = arguments
    sends = StepSends(*settings)
    sends._batches = batches
    return sends
