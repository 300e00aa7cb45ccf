"""Generated traffic of a society of agents.

A few agents write much, and most agents write little. Agents write more within their group than to other groups.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_messaging.errors import ConfigError
from ray_messaging.interception.rules.black_list import Pair
from ray_messaging.replay.trace import Traffic

WITHIN = 0.6  # the share of messages that stay within the sender's group
# An agent's activity decides how much it writes, and its popularity how much it gets. Both have a Pareto distribution,
# clipped to the range from LEAST to MOST. So the busiest agents write up to 600 times as much as the quietest.
TAIL, LEAST, MOST = 1.5, 0.05, 30.0
BLOCKED_PAIRS = 20
SECONDS = 86_400.0  # the traffic covers one day
PHRASES = (
    "hi",
    "how are you?",
    "did you see the news?",
    "let us meet at the market at noon",
    "I will think about it",
    "no.",
    "please tell the others that the meeting is moved to tomorrow",
    "thanks, talk to you later",
)


@dataclass(frozen=True, slots=True, eq=False)
class Society:
    """Generated traffic, the group of each agent (int32, by index), and a black list of pairs.

    `silenced` is the agent whose messages are all blocked by the black list.
    """

    traffic: Traffic
    group_of: NDArray[np.int32]
    black_list: list[Pair]
    silenced: int


def generate(agents: int, groups: int, messages: int, *, seed: int = 1) -> Society:
    """Generate a society with agents 0..agents-1. The same seed gives the same society.

    The sizes of the groups differ by at most one agent.

    The black list blocks all messages of one of the busiest agents. It also blocks the BLOCKED_PAIRS other pairs of
    sender and receiver that have the most messages.

    Raises: ConfigError if a group would have fewer than two agents.
    """
    if agents < 2 * groups:
        raise ConfigError(f"{agents} agents cannot fill {groups} groups: give at least two agents to a group")
    random = np.random.default_rng(seed)
    group_of = (np.arange(agents) * groups // agents).astype(np.int32)
    senders = _weighted(random, _tail(random, agents), messages)
    receivers = _receivers(random, group_of, senders)
    traffic = Traffic(
        "a generated society",
        list(range(agents)),
        senders,
        receivers,
        np.sort(random.uniform(0, SECONDS, messages)),
        [PHRASES[phrase] for phrase in random.integers(0, len(PHRASES), messages).tolist()],
    )
    silenced = int(np.argsort(np.bincount(senders, minlength=agents), kind="stable")[-3])
    pairs: list[Pair] = [(silenced, None), *_frequent_pairs(senders, receivers, silenced)]
    return Society(traffic, group_of, pairs, silenced)


def _tail(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return np.clip(random.pareto(TAIL, count), LEAST, MOST)


def _weighted(random: np.random.Generator, weights: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    return np.searchsorted(np.cumsum(weights / weights.sum()), random.random(count) * (1 - 1e-9)).astype(np.int32)


def _receivers(
    random: np.random.Generator, group_of: NDArray[np.int32], senders: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Draw receivers by popularity, from the sender's group or from all agents. No agent writes to itself."""
    popularity = _tail(random, len(group_of))
    receivers = _weighted(random, popularity, len(senders))
    within = random.random(len(senders)) < WITHIN
    for group in range(int(group_of.max()) + 1):
        members = np.flatnonzero(group_of == group)
        rows = np.flatnonzero(within & (group_of[senders] == group))
        receivers[rows] = members[_weighted(random, popularity[members], len(rows))]
    itself = receivers == senders
    receivers[itself] = (senders[itself] + 1) % len(group_of)
    return receivers


def _frequent_pairs(senders: NDArray[np.int32], receivers: NDArray[np.int32], silenced: int) -> list[Pair]:
    pairs, counts = np.unique(np.stack([senders, receivers], axis=1)[senders != silenced], axis=0, return_counts=True)
    frequent = pairs[np.argsort(-counts, kind="stable")[:BLOCKED_PAIRS]]
    return [(sender, receiver) for sender, receiver in frequent.tolist()]
