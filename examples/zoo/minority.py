"""The players in the minority win. Much memory makes the market calm, little memory makes it wild."""

from functools import cache

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import columns, run

NAME = "Minority game"
SOURCE = "Savit, Manuca and Riolo, Physical Review Letters 82 (1999) 2203, doi:10.1103/PhysRevLett.82.2203; the published values are from Challet, Marsili and Zecchina, Physical Review Letters 84 (2000) 1824, doi:10.1103/PhysRevLett.84.1824"  # noqa: E501
PLAYERS, MEMORIES = 101, range(3, 8)


def play(group, step):
    """In even steps choose a side by the better of two strategies. In odd steps the markets say which side won."""
    heard, state = step.messages, group.state
    if group.name == "markets" and len(heard):
        excess = 2 * heard.column("side").reshape(len(group.ids), PLAYERS).sum(axis=1) - PLAYERS
        state["squares"] += np.where(step.number >= group.shared["counted"], excess**2, 0)
        won = np.repeat(excess < 0, PLAYERS)
        step.send_columns(heard.to_ids, heard.from_ids, columns(won=won))
    elif group.name == "players" and step.number % 2 == 0:
        strategies, everybody = group.shared["strategies"], np.arange(len(group.ids))
        if step.number:
            won = heard.column("won")
            state["points"] += strategies[everybody, :, state["history"]] == won[:, np.newaxis]
            state["history"] = (2 * state["history"] + won) % group.shared["histories"]
        best = (state["points"] + 0.5 * step.uniform(2)).argmax(axis=1)
        side = strategies[everybody, best, state["history"]]
        step.send_columns(group.ids, len(group.ids) + group.ids // PLAYERS, columns(side=side))


@cache
def volatility(replicates, rounds):
    """Return the mean square of the excess, for each player, by replicate and memory."""
    memories = np.tile(MEMORIES, replicates)
    players = len(memories) * PLAYERS
    shared = {
        "strategies": np.random.default_rng(1).integers(2, size=(players, 2, 2 ** max(MEMORIES)), dtype=np.int8),
        "histories": np.repeat(2**memories, PLAYERS),
        "counted": rounds,  # the second half of the steps
    }
    result = run(
        play, by="group", agents=players + len(memories), until=2 * rounds, shared=shared,
        groups={"players": range(players), "markets": range(players, players + len(memories))},
        start=lambda group: {"points": np.zeros((len(group.ids), 2), int)}
        | {name: np.zeros(len(group.ids), int) for name in ("history", "squares")},
    )  # fmt: skip
    return result.states["markets"]["squares"].reshape(replicates, -1) / (rounds / 2) / PLAYERS


def calmest(replicates, *, rounds):
    """Return the memory with the least volatility."""
    return (MEMORIES[0] + volatility(replicates, rounds).argmin(axis=1)).tolist()


def with_memory(replicates, *, memory, rounds):
    """Return the volatility for each player with a memory."""
    return volatility(replicates, rounds)[:, memory - MEMORIES[0]].tolist()


CLAIMS = [
    Claim(
        "memory (rounds) at which volatility is least, 101 players", calmest, float(np.log2(0.3374 * PLAYERS)),
        "a memory is a whole number of rounds, and the theory gives 5.091", apart=1, replicates=4, small=2,
        sizes={"rounds": 2000}, small_sizes={"rounds": 400},
    ),
    Claim(
        "volatility per player, memory of 6 rounds", with_memory, 0.219,
        "the volatility varies between games by a fifth. The theory for infinitely many players may be a tenth off",
        spread=0.044, apart=0.022, replicates=4, small=0, sizes={"memory": 6, "rounds": 2000},
    ),
]  # fmt: skip
