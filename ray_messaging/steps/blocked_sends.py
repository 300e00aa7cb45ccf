"""The messages of a step that rules blocked. In the next step, the senders' groups read which messages these were."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import BLOCKED
from ray_messaging.model.joining import joined_arrays, joined_ids
from ray_messaging.steps.agent_places import NO_PLACES, AgentPlaces
from ray_messaging.steps.canonical_order import id_ranks
from ray_messaging.steps.step_routes import question_id
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.notes import LogNote, decode_log_note, encode_log_note, why_of

# For each batch: a frame of the batch without payloads, and a note with the rules and reasons.
_Parts = list[tuple[bytes, bytes]]


class BlockedSend(NamedTuple):
    """A message that a rule blocked. For a question, `message_id` is the id that `ask` returned."""

    message_id: str
    from_id: AgentId
    to_id: AgentId | None
    rule: str
    reason: str


def encode_blocked(batches: Iterable[tuple[Batch, Mapping[int, tuple[str, str]]]]) -> bytes:
    """Encode the blocked rows of batches, with the rule and the reason of each row.

    Without blocked rows, return b"".
    """
    parts = [_part(batch, blocks) for batch, blocks in batches if blocks]
    return msgspec.msgpack.encode(parts) if parts else b""


def _part(batch: Batch, blocks: Mapping[int, tuple[str, str]]) -> tuple[bytes, bytes]:
    taken = batch.take(np.fromiter(blocks, np.intp))
    taken.labels, taken.noted, taken.extension = {}, None, Extension(ordinal=taken.ordinal)
    return encode(taken, with_payload=False), encode_log_note(LogNote(BLOCKED, why=why_of(blocks.values())))


class BlockedSends(Sequence[BlockedSend]):
    """Messages that some agents sent in a step and that rules blocked, ordered by sender, then in order of sending.

    `places` has the place of each message's sender in the group.

    Args: `parts` are results of `encode_blocked`. Messages in them that other agents sent are left out.
    """

    def __init__(self, step: int, parts: Iterable[bytes], agents: AgentPlaces) -> None:
        self._step = step
        ids: list[tuple[IdColumn, IdColumn]] = [(IdColumn.of([]), IdColumn.of([]))]
        ordinals, whys = [np.zeros(0, np.uint32)], [np.zeros(0, np.intp)]
        # The distinct pairs of rule and reason. `_whys` has, for each message, an index into this list.
        self._why: list[tuple[str, str]] = []
        for frame, noted in (each for part in parts for each in msgspec.msgpack.decode(part, type=_Parts)):
            batch = decode(frame)
            assert batch.ordinal is not None
            why = np.zeros(batch.rows, np.intp)
            for each in decode_log_note(noted, batch.rows).why:
                why[np.frombuffer(each.rows, "<u4")] = len(self._why)
                self._why.append((each.rule, each.reason))
            ids.append((batch.from_ids, batch.to_ids))
            ordinals.append(batch.ordinal)
            whys.append(why)
        from_ids, to_ids = (joined_ids(columns) for columns in zip(*ids, strict=True))
        places, numbers = agents.find(from_ids), joined_arrays(ordinals)
        order = np.lexsort((id_ranks([to_ids]), numbers, places))
        order = order[places[order] >= 0]
        self.places, self._ordinals, self._whys = places[order], numbers[order], joined_arrays(whys)[order]
        self._from_ids, self._to_ids = from_ids.take(order), to_ids.take(order)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, row: int) -> BlockedSend: ...
    @overload
    def __getitem__(self, row: slice) -> list[BlockedSend]: ...
    def __getitem__(self, row: int | slice) -> BlockedSend | list[BlockedSend]:
        """Return one message, or a list of messages for a slice."""
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        from_id, why = self._from_ids[row], self._why[self._whys[row]]
        assert from_id is not None  # A group sends only messages of its agents, so the sender is never the user.
        return BlockedSend(question_id(self._step, self._ordinals[row], from_id), from_id, self._to_ids[row], *why)

    def of(self, place: int) -> Sequence[BlockedSend]:
        """Return the blocked messages that the agent at a place has sent."""
        if not len(self):
            return ()
        low, high = np.searchsorted(self.places, [place, place + 1]).tolist()
        return self[low:high]

    @property
    def from_ids(self) -> NDArray[Any]:
        """Return each message's sender, int64 (n,). If some ids are strs, the array has the dtype object."""
        return self._from_ids.to_numpy()

    @property
    def to_ids(self) -> NDArray[Any]:
        """Return each message's recipient, int64 (n,), where the user is None.

        With strs or None the dtype is object.
        """
        return self._to_ids.to_numpy()

    @property
    def rules(self) -> list[str]:
        """Return the rule that blocked each message."""
        return [self._why[why][0] for why in self._whys.tolist()]

    @property
    def reasons(self) -> list[str]:
        """Return why each message was blocked."""
        return [self._why[why][1] for why in self._whys.tolist()]


NOTHING_BLOCKED = BlockedSends(-1, (), NO_PLACES)
