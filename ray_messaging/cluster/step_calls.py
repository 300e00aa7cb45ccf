"""The data that cross between a group's actor and the task that drives its steps."""

from typing import NamedTuple

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn


class StepDriver(NamedTuple):
    """A driver of a group: its Ray task, and a token of this attempt at the task."""

    task: str
    token: str


class StepDone(NamedTuple):
    """Outcome of a step's body: the messages that it sends, and the state (None: there is none).

    `agents` is how many the driver knows; a group only gets more of them.
    """

    number: int
    sends: list[Batch]
    state: bytes | None
    agents: int


class OpenStep(NamedTuple):
    """An open step of a group: its messages in canonical order (None: there are none), and the state before it.

    `agents` are None where the driver has them already.
    """

    number: int
    seed: int
    horizon: int
    messages: Batch | None
    state: bytes | None
    agents: IdColumn | None
