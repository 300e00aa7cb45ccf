"""Fields and columns of a batch that only steps, questions and audiences use."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.message_ids import MessageIdColumn

T = TypeVar("T")
_ROW_BYTES = 16  # enough bytes for a row's number and for the lengths of two strs in msgpack


UNRESOLVED = 0  # stands in place of an audience's version, which will be looked up later


class AudiencePairs(NamedTuple):
    """The name and version of an audience, a set of pairs of sender and hearer."""

    name: str
    version: int


class Fold(NamedTuple):
    """How rows of a batch represent pairs of sender and hearer: each row is one broadcast to several hearers.

    All hearers are agents of one mailbox, and `agents` is the digest of that mailbox's set of agents. `pairs` is the
    number of pairs that the batch represents. If some pairs of the rows are left out, `kept` says which pairs remain
    (see `audiences.folding`).
    """

    agents: bytes
    pairs: int
    kept: bytes = b""


class OutsideQuestion(NamedTuple):
    """A question that came from outside of the steps: the mailbox for its answer, and its message id."""

    mailbox: str
    question: str


AskedOutside = dict[int, OutsideQuestion]  # key: the row of a question, or of an answer to it


class InHand(NamedTuple):
    """A message whose handler waits for an answer: the mailbox, the message's id, and the agent that handles it.

    `slots` is how many handlers `serve` may run at once for the mailbox, or 0 if there may be other calls of `serve`.
    """

    mailbox: str
    message: str
    agent: AgentId | None
    slots: int


Behind = dict[int, tuple[InHand, ...]]  # key: the row of a question; value: the handlers that wait for its answer


class Extension(msgspec.Struct, eq=False, kw_only=True):
    """Columns and fields of a batch of n messages that only steps, questions and audiences need.

    For steps: `attempt` is the sending group's attempt at the step (0: not in a step). `deliver` is the step in which
    the messages are read (an int64 column, or one int for all messages). `ordinal` (uint32) is the number of each
    message among the messages that the same from_id sends in the step.

    For questions and answers: `in_reply_to` has the ids of the questions. `expects_answer` (bool) marks questions.
    `reply_mailbox` is the mailbox that gets the answers. `asked_outside` has, in a step, the questions from outside;
    its keys are the rows of the questions, or of their answers. `behind` has, for the rows of questions, the chain of
    handlers that wait for the answer. The last handler in the chain is the one that asks. If `failed` is true, the
    answers say that handlers have failed. `caused_by` has, for messages that are not answers, the id of the message
    that the sender was handling.

    For broadcasts: the recipients are the hearers in `audience`. With a `fold` each row represents many recipients;
    without a fold the batch has a row for each recipient.
    """

    attempt: int = 0
    deliver: NDArray[np.int64] | int | None = None
    ordinal: NDArray[np.uint32] | None = None
    in_reply_to: MessageIdColumn | None = None
    expects_answer: NDArray[np.bool_] | None = None
    reply_mailbox: str = ""
    asked_outside: AskedOutside = {}
    behind: Behind = {}
    failed: bool = False
    caused_by: MessageIdColumn | None = None
    audience: AudiencePairs | None = None
    fold: Fold | None = None

    @classmethod
    def joined(cls, parts: Sequence[tuple["Extension | None", int]]) -> "Extension | None":
        """Return the joined extension of several batches, in their order, or None if none has an extension.

        Args: `parts` has for each batch its extension, or None, and its number of rows. Either all extensions have the
        same `kind`, or some parts are None and the extensions of the others have only `caused_by`. No batch may belong
        to an attempt at a step.
        """
        first = next((each for each, _ in parts if each is not None), None)
        if first is None:
            return None
        given = [(each or cls(), rows) for each, rows in parts]
        ordinals = [each.ordinal for each, _ in given if each.ordinal is not None]
        replies = [each.in_reply_to for each, _ in given if each.in_reply_to is not None]
        expects = [each.expects_answer for each, _ in given if each.expects_answer is not None]
        causes = None
        if any(each.caused_by is not None for each, _ in given):
            causes = MessageIdColumn.joined(
                [MessageIdColumn.none(rows) if each.caused_by is None else each.caused_by for each, rows in given]
            )
        return cls(
            ordinal=np.concatenate(ordinals) if ordinals else None,
            in_reply_to=MessageIdColumn.joined(replies) if replies else None,
            expects_answer=np.concatenate(expects) if expects else None,
            reply_mailbox=first.reply_mailbox,
            asked_outside=_joined_rows([(each.asked_outside, rows) for each, rows in given]),
            behind=_joined_rows([(each.behind, rows) for each, rows in given]),
            failed=first.failed,
            caused_by=causes,
            audience=first.audience,
        )

    def take(self, rows: NDArray[np.intp]) -> "Extension":
        """Return the extension of some rows. It has no `fold`: each row then counts as one message."""
        return Extension(
            attempt=self.attempt,
            deliver=self.deliver[rows] if isinstance(self.deliver, np.ndarray) else self.deliver,
            ordinal=None if self.ordinal is None else self.ordinal[rows],
            in_reply_to=None if self.in_reply_to is None else self.in_reply_to.take(rows),
            expects_answer=None if self.expects_answer is None else self.expects_answer[rows],
            reply_mailbox=self.reply_mailbox,
            asked_outside=self.outside_of(rows) if self.asked_outside else {},
            behind=_rows_of(self.behind, rows) if self.behind else {},
            failed=self.failed,
            caused_by=None if self.caused_by is None else self.caused_by.take(rows),
            audience=self.audience,
        )

    def outside_of(self, rows: NDArray[np.intp]) -> AskedOutside:
        """Return the questions from outside of the steps that messages in some rows ask or answer.

        The keys of the result are positions in `rows`.
        """
        return _rows_of(self.asked_outside, rows)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return a sortable key that is equal for extensions that can be joined."""
        given = (self.in_reply_to is not None, self.expects_answer is not None, self.caused_by is not None)
        return (self.reply_mailbox, self.audience or (), self.failed, *given)

    @property
    def row_bytes(self) -> int:
        """Return how many bytes the extension of one row takes at most when the batch is encoded."""
        columns: tuple[Any, ...] = (self.deliver, self.ordinal, self.expects_answer)
        in_columns = sum(column.itemsize for column in columns if isinstance(column, np.ndarray))
        names = (len(each.mailbox) + len(each.question) + _ROW_BYTES for each in self.asked_outside.values())
        chains = (sum(map(_in_hand_bytes, chain)) + _ROW_BYTES for chain in self.behind.values())
        widths = sum(column.width for column in (self.in_reply_to, self.caused_by) if column is not None)
        return in_columns + max(names, default=0) + max(chains, default=0) + widths


def _joined_rows(parts: Sequence[tuple[dict[int, T], int]]) -> dict[int, T]:
    """Join the values that some rows of several batches have. The keys of the result are rows of the joined batch.

    Args: `parts` has, for each batch, a dict from row to value, and the batch's number of rows.
    """
    found: dict[int, T] = {}
    low = 0
    for each, rows in parts:
        found |= {low + row: value for row, value in each.items()}
        low += rows
    return found


def _rows_of(values: dict[int, T], rows: NDArray[np.intp]) -> dict[int, T]:
    """Return the values of some rows. The keys of `values` are rows, those of the result are positions in `rows`.

    Rows without a value are left out.
    """
    return {at: values[row] for at, row in enumerate(rows.tolist()) if row in values}


def _in_hand_bytes(each: InHand) -> int:
    names = (each.mailbox, each.message, each.agent if isinstance(each.agent, str) else "")
    return 2 * _ROW_BYTES + sum(len(name.encode()) for name in names)
