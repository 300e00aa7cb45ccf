"""Inbox of a step: the messages for a group's agents, in canonical order."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.message import Messages, Slice
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension
from ray_messaging.model.joining import joined_arrays, joined_ids, joined_payloads
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.canonical_order import canonical_order


class StepInbox:
    """The messages of one step for some agents: all of them, or agent by agent.

    Args: `batches` are those of the step's box that count. Each of their rows has a step and an ordinal.
    """

    def __init__(self, exp_id: str, agents: AgentPlaces, batches: Sequence[Batch]) -> None:
        self._exp_id = exp_id
        self._agents = agents
        filled = [batch for batch in batches if batch.rows]
        self._batch = in_canonical_order(filled) if filled else None
        self.messages = self._slice(0, 0 if self._batch is None else self._batch.rows)
        places = np.zeros(0, np.int64) if self._batch is None else agents.find(self._batch.to_ids)
        # Between them there may be messages on other channels that the group listens to.
        self._owned = owned = np.flatnonzero(places >= 0)
        self._bounds = bounds = np.searchsorted(places[owned], np.arange(len(agents) + 1))
        self._lows: list[int] = np.append(owned, 0)[bounds[:-1]].tolist()
        self._counts: list[int] = np.diff(bounds).tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        return StepInbox, (self._exp_id, self._agents, [] if self._batch is None else [self._batch])

    def part(self, low: int, high: int) -> "StepInbox":
        """Return the messages for the agents from one place to before another, without those for other recipients."""
        rows, agents = self._owned[self._bounds[low] : self._bounds[high]], self._agents.part(low, high)
        if self._batch is None or not len(rows):
            return StepInbox(self._exp_id, agents, [])
        batch = self._batch.take(rows)
        assert batch.lines is not None
        batch.lines.pack()  # it is about to be pickled
        batch.numbers = None
        return StepInbox(self._exp_id, agents, [batch])

    def of(self, place: int) -> Messages:
        """Return the messages of the agent at a place."""
        low = self._lows[place]
        return self._slice(low, low + self._counts[place])

    def by_agent(self) -> Iterator[tuple[AgentId, Messages]]:
        """Yield each agent with its messages, in canonical order; also agents without messages."""
        for place, agent in enumerate(self._agents):
            yield agent, self.of(place)

    def _slice(self, low: int, high: int) -> Messages:
        found = [] if self._batch is None or low == high else [Slice(self._batch, low, high)]
        return Messages(self._exp_id, found)


def in_canonical_order(batches: Sequence[Batch]) -> Batch:
    """Return the rows of some batches as one batch, in canonical order."""
    rows = [batch.rows for batch in batches]
    extensions = [batch.extension or Extension() for batch in batches]
    to_ids, from_ids = [batch.to_ids for batch in batches], [batch.from_ids for batch in batches]
    steps = _by_row([batch.step for batch in batches], rows, np.int64)
    ordinals = joined_arrays([each.ordinal for each in extensions if each.ordinal is not None])
    order = canonical_order(to_ids, steps, from_ids, ordinals)
    places = np.empty(len(order), np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    table: dict[str, int] = {}
    topics = [_topics(batch, table) for batch in batches]
    lines = joined_payloads([batch.lines for batch in batches if batch.lines is not None], rows)
    assert lines.index is not None
    lines.index = lines.index[order]
    return Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=joined_ids(from_ids).take(order),
        rows=len(order),
        to_ids=joined_ids(to_ids).take(order),
        topics=tuple(table),
        topic=joined_arrays(topics)[order] if len(table) > 1 else None,
        step=steps[order],
        sent_at=_by_row([batch.sent_at for batch in batches], rows, np.float64)[order],
        lines=lines,
        labels=_labels(batches, rows, places),
        extension=Extension(ordinal=ordinals[order]),
    )


def _by_row(values: Sequence[object], rows: Sequence[int], kind: type) -> NDArray[Any]:
    """Return a value per row from arrays, or single values for all rows of a batch."""
    found: NDArray[Any] = joined_arrays(
        [np.broadcast_to(np.asarray(v, kind), n) for v, n in zip(values, rows, strict=True)]
    )
    return found


def _topics(batch: Batch, table: dict[str, int]) -> NDArray[np.uint16]:
    places = np.array([table.setdefault(name, len(table)) for name in batch.topics], np.uint16)
    return places[np.zeros(batch.rows, np.intp) if batch.topic is None else batch.topic]


def _labels(batches: Sequence[Batch], rows: Sequence[int], places: NDArray[np.uint32]) -> dict[str, NDArray[np.uint32]]:
    """Return the rows of each label, by the places that the rows have now."""
    found: dict[str, list[NDArray[np.uint32]]] = {}
    low = 0
    for batch, count in zip(batches, rows, strict=True):
        for name, marked in batch.labels.items():
            found.setdefault(name, []).append(places[marked + low])
        low += count
    return {name: np.sort(joined_arrays(parts)) for name, parts in found.items()}
