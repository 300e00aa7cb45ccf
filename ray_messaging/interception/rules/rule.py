"""What a rule is."""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ray_messaging.frames import Batch
from ray_messaging.message import Message


class Verdict(NamedTuple):
    """Say whether one message may pass, and if not, why."""

    blocked: bool
    reason: str = ""


ALLOW = Verdict(False)


def block(reason: str) -> Verdict:
    """Build the verdict that stops a message."""
    return Verdict(True, reason)


class Rule:
    """Judge messages, one by one or a whole batch at once.

    Override `check`, or `check_batch` where a batch can be judged by its columns. A rule that reads payloads sets
    `needs_payload`. A rule that raises, or answers nonsense, blocks; `on_error = "allow"` says otherwise.
    """

    name: str = ""
    needs_payload: bool = False
    on_error: Literal["block", "allow"] = "block"

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - as type's
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def check(self, message: Message) -> Verdict:
        """Judge one message: ALLOW, or block("why")."""
        raise NotImplementedError(f"rule {self.name!r} must override check or check_batch")

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, str]:
        """Judge a batch; return the rows that are blocked, and why."""
        found: dict[int, str] = {}
        for row in range(len(batch)):
            try:
                blocked, reason = _checked(self.check(Message(exp_id, batch, row)))
            except Exception as error:  # noqa: BLE001 - a rule is the user's code: fail closed, and say so
                blocked, reason = self.on_error == "block", failure(error)
            if blocked:
                found[row] = reason
        return found

    def dump(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the state that must outlive the interceptor's process, as JSON; None: there is none."""
        return None

    def load(self, state: Any) -> None:  # noqa: ANN401 - JSON of any shape
        """Take over a state that `dump` gave, in place of one's own."""

    def merge(self, state: Any) -> None:  # noqa: ANN401 - JSON of any shape
        """Take over an earlier run's state beside one's own; where nothing else is said, in place of it."""
        self.load(state)


def _checked(verdict: object) -> Verdict:
    """Return what a rule answered, if it is a verdict; raise TypeError otherwise."""
    if isinstance(verdict, Verdict) and isinstance(verdict.reason, str):
        return verdict
    raise TypeError(f"{verdict!r} is no verdict: return ALLOW, or block('why')")


def failure(error: BaseException) -> str:
    """Say as a reason that a rule failed."""
    return f"the rule failed: {type(error).__name__}: {error}"
