"""The rule `Sample`, which blocks or labels a random share of the messages, the same share in each repetition."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.checks import check_choice
from ray_messaging.interception.rules.rule import Rule, Verdict, block, label
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, STR, IdColumn

_GAMMA, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _hashes(ids: IdColumn) -> NDArray[np.uint64]:
    """Return a number for each id, uint64 (n,): an int id itself, the hash of a str id, or 1 for None, the user."""
    found = ids.values.astype(np.uint64)
    if ids.kinds is not None:
        names = [blake2b(name.encode(), digest_size=8).digest() for name in ids.strings]
        named = ids.kinds == STR
        found[named] = np.array([int.from_bytes(name, "little") for name in names], np.uint64)[ids.values[named]]
        found[ids.kinds == NONE] = 1
    return found


class Sample(Rule):
    """Block or label a random share of the messages, to simulate a lossy network or to study some of the messages.

    In an experiment with steps, the choice is a hash of the seed, the step, the agent and the message's place among the
    agent's messages in the step. So the choice is the same however often a step runs, and for any number of groups.

    Without steps, the choice is a hash of the seed, the messager's name and the message's number. So a retry gets the
    same verdict, and a run is repeatable if messagers with the same names send the same messages. A group always has a
    name. A messager has one only if it was given one. A restart of the messager does not change the choice.

    Messages from the user (from_id None) are picked like other messages.

    Args:
        share: the share of messages to pick, from 0 to 1.
        seed: the seed of the choice. Another seed picks other messages.
        action: "block", or "label", which adds the rule's name as a label.
        name: the rule's name.

    Raises: RuleError if an argument is not valid.
    """

    judges_broadcasts = "message"
    _described = ("share", "seed", "action")

    def __init__(
        self, share: float, seed: int = 0, *, action: Literal["block", "label"] = "block", name: str = "sample"
    ) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise RuleError(f"share={share!r} is not a share: pass a number from 0 to 1", rule=name)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise RuleError(f"seed={seed!r} is not a seed: pass an int", rule=name)
        self.name = name
        self.share = share
        self.seed = seed
        self.action = check_choice("action", action, ("block", "label"), name)

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return the verdicts on the rows that belong to the random share."""
        if batch.step is not None and batch.ordinal is not None:
            ids = _hashes(batch.from_ids) * _MIX_2
            mixed = self._start(f"step {batch.step}") + ids + (batch.ordinal.astype(np.uint64) + np.uint64(1)) * _GAMMA
        else:
            rows = np.arange(len(batch), dtype=np.uint64) if batch.numbers is None else batch.numbers.astype(np.uint64)
            mixed = self._start(batch.sender) + (rows + np.uint64(batch.first + 1)) * _GAMMA
        # Here `mixed` is a start plus k times _GAMMA. The next lines turn it into the k-th random number of splitmix64.
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        mixed ^= mixed >> np.uint64(31)
        picked = np.flatnonzero((mixed >> np.uint64(11)) * 2.0**-53 < self.share)
        if not len(picked):
            return {}
        verdict = block(
            f"the message is one of the {100 * self.share:g}% of messages that are picked by chance (seed {self.seed})"
        )
        return dict.fromkeys(picked.tolist(), label(self.name) if self.action == "label" else verdict)

    def _start(self, of: str) -> np.uint64:
        return np.uint64(int.from_bytes(blake2b(f"{self.seed}:{of}".encode(), digest_size=8).digest(), "little"))
