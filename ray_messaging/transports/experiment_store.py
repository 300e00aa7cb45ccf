"""Port to the data of an experiment as a whole: its run, its interceptor's epoch, and the state of its rules."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from ray_messaging.errors import Fenced

Fields = dict[bytes, bytes]


class Claim(IntEnum):
    """Result of a claim on an experiment."""

    LOST = 0  # another start has it
    HELD = 1
    ERASE = 2  # held, and the data of the earlier start must be deleted


class StateWrite(IntEnum):
    """Result of a call under the interceptor's epoch."""

    FENCED = 0  # another interceptor has taken over
    DONE = 1
    BEHIND = 2  # the server has lost an earlier write: write everything again


class TableChanges(Protocol):
    """Changes of one rule's table; `cleared`: they replace the table."""

    @property
    def put(self) -> Fields:
        """Fields with their new values."""

    @property
    def gone(self) -> Sequence[bytes]:
        """Fields to delete."""

    @property
    def cleared(self) -> bool:
        """Whether `put` is the whole table."""


class RuleState(NamedTuple):
    """Changes of the rules' state that are written in one step.

    `answers` are verdicts that depend on the tables, `forget` answers to delete. `names` are the rules' names (None:
    unchanged). `whole`: this replaces everything that the server has.
    """

    tables: Mapping[str, TableChanges]
    answers: Mapping[str, bytes]
    forget: Sequence[str]
    names: Sequence[str] | None
    whole: bool


class ExperimentStore(Protocol):
    """Experiment-wide data on one server, on behalf of one start (run) of the experiment."""

    @property
    def where(self) -> str:
        """Address of the server, for messages."""

    # -- runs -----------------------------------------------------------------------------------------------------

    async def holder(self) -> bytes | None:
        """Return the run that has the experiment; None if no run has. Raises ConfigError for data of another format."""

    async def is_headless(self) -> bool:
        """Return whether mailboxes exist although the server has lost the experiment's own data."""

    async def claim(self, holder: bytes | None, *, reset: bool) -> Claim:
        """Claim the experiment for our run, if `holder` still has it. `reset`: the data of that run will be erased."""

    async def erase_earlier(self) -> None:
        """Delete the data of earlier runs; may be repeated after an interruption."""

    async def erase(self) -> None:
        """Delete all data of the experiment, unless another run has it by now."""

    # -- the interceptor ------------------------------------------------------------------------------------------

    async def take_interceptor_epoch(self) -> int:
        """Take a new epoch: an earlier interceptor passes and writes nothing any more. Raises Fenced."""

    async def heartbeat(self) -> bytes | None:
        """Return the counter of the interceptor's heartbeats; None if it was closed."""

    async def beat(self, epoch: int) -> StateWrite:
        """Raise that counter, and check that the server has all confirmed writes. Raises Fenced for another run."""

    async def end_heartbeat(self, epoch: int) -> None:
        """Mark the interceptor as closed."""

    async def delegate(self, epoch: int, number: int) -> StateWrite:
        """Make delegated verdicts count under a number, unless a higher one does."""

    async def read_tables(self, names: Iterable[str]) -> tuple[dict[str, Fields], dict[str, bytes]]:
        """Return tables by name, and the answers that depend on them."""

    async def write(self, epoch: int, state: RuleState, *, again: bool) -> StateWrite:
        """Write changes in one step. `again`: the last write is repeated."""

    async def rules_name(self) -> bytes | None:
        """Return the first of the rules' names: the key under which Ray keeps the rules in force."""

    # -- the event log, and senders -------------------------------------------------------------------------------

    async def log_mark(self, name: str) -> bytes | None:
        """Return a value that the event log has left."""

    async def set_log_mark(self, name: str, value: str | int) -> None:
        """Leave a value for the event log's next process."""

    async def time_ms(self) -> int:
        """Return the server's time in ms."""

    async def forget_sender(self, name: str) -> None:
        """Delete the epoch and sequence numbers of a sender."""


def other_run(exp_id: str, epoch: int) -> Fenced:
    """Build the error for the start of an experiment that a later start has replaced."""
    return Fenced(
        f"experiment {exp_id!r} was started anew on its server since, by another cluster or with on_existing='reset', "
        "or the server was flushed: nothing of this start passes any more. Shut it down, and start the experiment "
        "again, or under another exp_id",
        name=exp_id,
        epoch=epoch,
    )
