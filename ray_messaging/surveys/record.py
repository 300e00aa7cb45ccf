"""The records of a survey that are stored on the server."""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.fates import BLOCKED, IS_STORED, UNKNOWN
from ray_messaging.receipt import Receipts

END = "end"  # the name of the record that ends a survey; it has the id of the last mailbox entry whose answers count


class SurveyRecord(msgspec.Struct, array_like=True, frozen=True):
    """A survey as it was created.

    `ints` (int64) and `strings` are the ids of the agents that the survey asks. `question` is JSON.
    """

    mailbox: str
    question: bytes
    subtopic: str
    schema: bytes
    ints: bytes
    strings: tuple[str, ...]
    timeout: float | None
    created_at: float

    @property
    def agents(self) -> AgentSet:
        """Return the agents that the survey asks."""
        return AgentSet(np.frombuffer(self.ints, "<i8"), self.strings)


class BlockedQuestion(NamedTuple):
    """The name of the rule that blocked a question, and the rule's reason."""

    rule: str
    reason: str


class Asking(msgspec.Struct, array_like=True, frozen=True):
    """The record of questions that were sent together.

    `places` (uint32) has the positions of the asked agents among the survey's agents. The record also says which
    questions did not arrive.

    `due` is the unix time until which other processes wait for the answers; None: there is no limit.
    """

    places: bytes
    due: float | None
    blocked: dict[int, BlockedQuestion] = {}  # for positions of agents: why the agent's question was blocked
    undeliverable: tuple[int, ...] = ()
    timeout: float | None = None  # the number of seconds from the questions to `due`

    @classmethod
    def of(cls, places: NDArray[np.intp], receipts: Receipts, due: float | None, timeout: float | None) -> "Asking":
        """Build the record of some questions from their receipts."""
        codes = receipts.codes
        blocked = {
            int(places[row]): BlockedQuestion(receipt.rule or "", receipt.reason or "")
            for row in np.flatnonzero(codes == BLOCKED).tolist()
            for receipt in (receipts[row],)
        }
        # A question whose fate is unknown may have arrived, so it is not lost. A question that was published to foreign
        # clients is lost, because they do not answer.
        lost = places[~(IS_STORED[codes] | (codes == UNKNOWN) | (codes == BLOCKED))]
        return cls(places.astype("<u4").tobytes(), due, blocked, tuple(lost.tolist()), timeout)


encode = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(SurveyRecord).decode
decode_asking = msgspec.msgpack.Decoder(Asking).decode
