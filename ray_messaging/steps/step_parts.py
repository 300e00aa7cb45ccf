"""Parts of one step, on which other tasks work: the parts of the last split, and those that were joined."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ray_messaging.errors import InvalidParts

if TYPE_CHECKING:
    from ray_messaging.steps.step_sends import StepSends

_NAMED = 4  # the most missing parts that an error names


class PartTag(NamedTuple):
    """Name of a part of a step: the split that made it, and its position among `of` parts."""

    split: str
    place: int
    of: int

    def __str__(self) -> str:
        return f"part {self.place + 1} of {self.of}"


class StepParts:
    """The parts of one step. Each agent is in one part, and each part is joined once."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._places: dict[PartTag, slice] = {}  # for each part of the last split, the places of its agents
        self._joined: dict[PartTag, StepSends] = {}

    def split(self, agents: int, n: int) -> dict[PartTag, slice]:
        """Split the places of agents into at most n parts; raise InvalidParts unless n is an int of at least 1."""
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise InvalidParts(f"split({n!r}): write the number of parts, at least 1", step=self._step)
        count, split = min(int(n), agents), secrets.token_hex(8)
        for place in range(count):
            found = slice(agents * place // count, agents * (place + 1) // count)
            self._places[PartTag(split, place, count)] = found
        return self._places

    def join(self, parts: Sequence["StepSends"]) -> list[tuple[slice, "StepSends"]]:
        """Join some parts. Return all parts in the order of the split when none is missing any more, otherwise [].

        Raises: InvalidParts if one was joined before, or is from another step or split; then none is joined.
        """
        found = dict(self._joined)
        for part in parts:
            if part.tag is None or part.tag not in self._places:
                raise self._foreign(part)
            if part.tag in found:
                raise InvalidParts(f"{part.tag} of step {self._step} was joined twice", step=self._step)
            found[part.tag] = part
        self._joined = found
        if len(found) < len(self._places):
            return []
        whole = [(places, found[tag]) for tag, places in self._places.items()]
        self._places, self._joined = {}, {}
        return whole

    def check_whole(self) -> None:
        """Raise InvalidParts while parts are missing."""
        missing = [str(tag) for tag in self._places if tag not in self._joined]
        if missing:
            names = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
            raise InvalidParts(
                f"step {self._step} was split, and lacks {names}: call `step.join(parts)` with all of them before the "
                "step sends, is split again, or ends",
                step=self._step,
            )

    def _foreign(self, part: "StepSends") -> InvalidParts:
        other = f"is of step {part.step}" if part.step != self._step else "is of another split, or of another group"
        return InvalidParts(
            f"{part.tag or 'this'} {other}: step {self._step} joins the parts of its own last split", step=self._step
        )
