"""Values of an experiment as a whole: its run, its interceptor's epoch, and the state of its rules."""

from collections.abc import Mapping, Sequence
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


def other_run(exp_id: str, epoch: int) -> Fenced:
    """Build the error for the start of an experiment that a later start has replaced."""
    return Fenced(
        f"experiment {exp_id!r} was started anew on its server since, by another cluster or with on_existing='reset', "
        "or the server was flushed: nothing of this start passes any more. Shut it down, and start the experiment "
        "again, or under another exp_id",
        name=exp_id,
        epoch=epoch,
    )
