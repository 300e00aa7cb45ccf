"""Rows of a pending batch that are questions, or answers."""

from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Behind, Extension
from ray_messaging.model.message_ids import MessageIdColumn

if TYPE_CHECKING:
    from ray_messaging.message import Message

_EXPECTS = np.ones(1, np.bool_)  # of a lone question: to make it takes as long as all else of the extension
_EXPECTS.flags.writeable = False


class Questions(NamedTuple):
    """Questions, whose answers go to a mailbox.

    `sealed` gets each batch of them, once its messages have their ids and before it is sent, with the futures of the
    answers to questions that were asked one by one.
    """

    mailbox: str
    sealed: "Callable[[Batch, list[Future[Message]]], None]"


class Replies(NamedTuple):
    """Answers for a mailbox; those that `failed` say that a handler did."""

    mailbox: str
    failed: bool = False


class ConversationRows(msgspec.Struct, eq=False):
    """The rows of one batch, all questions or all answers: the ids that they answer, the futures of their answers.

    `behind` has the handlers that wait for the answer to a question, by row.
    """

    kind: Questions | Replies
    in_reply_to: list[str] = msgspec.field(default_factory=list)
    answers: "list[Future[Message]]" = msgspec.field(default_factory=list)
    behind: Behind = msgspec.field(default_factory=dict)

    def extend(self, batch: Batch) -> Batch:
        """Give a sealed batch the columns of its questions or answers."""
        if isinstance(self.kind, Replies):
            replies = MessageIdColumn.of(self.in_reply_to)
            batch.extension = Extension(in_reply_to=replies, reply_mailbox=self.kind.mailbox, failed=self.kind.failed)
        else:
            expects = _EXPECTS if batch.rows == 1 else np.ones(batch.rows, np.bool_)
            batch.extension = Extension(expects_answer=expects, reply_mailbox=self.kind.mailbox, behind=self.behind)
            self.kind.sealed(batch, self.answers)
        return batch
