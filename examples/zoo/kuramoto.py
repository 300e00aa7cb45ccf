"""Oscillators of different frequencies fall into step if they are coupled strongly enough."""

import numpy as np

from examples.zoo.claims import Claim
from ray_messaging import columns, run

NAME = "Coupled oscillators"
SOURCE = "Yoshiki Kuramoto, Lecture Notes in Physics 39 (1975) 420, doi:10.1007/BFb0013365"
TICK = 0.1  # the time between two rounds, in units of 1 / (width of the frequencies)


def play(group, step):
    """In even steps tell the conductor a phase. In odd steps the conductor tells all oscillators the mean phase."""
    heard = step.messages
    if group.name == "conductor" and len(heard):
        field = np.exp(1j * heard.column("phase")).mean()
        group.state["order"] = np.append(group.state["order"], abs(field))
        same = np.ones(len(heard))
        told = columns(cosine=same * field.real, sine=same * field.imag)
        step.send_columns(heard.to_ids, heard.from_ids, told)
    elif group.name == "players" and step.number % 2 == 0:
        phase = group.state["phase"]
        if step.number:
            field = heard.column("cosine") + 1j * heard.column("sine")
            pull = (field * np.exp(-1j * phase)).imag
            phase = group.state["phase"] = phase + TICK * (group.shared["frequency"] + group.shared["coupling"] * pull)
        step.send_columns(group.ids, np.full(len(group.ids), len(group.ids)), columns(phase=phase))


def order(replicates, *, coupling, players=2000, ticks=300):
    """Return the mean of the order parameter over the second half of the time."""
    frequency = np.tan(np.pi * ((np.arange(players) + 0.5) / players - 0.5))  # a Lorentzian of width 1
    parts = {"players": range(players), "conductor": [players]}
    means = []
    for seed in range(replicates):
        result = run(
            play, by="group", agents=players + 1, groups=parts, until=2 * ticks, seed=seed,
            shared={"frequency": frequency, "coupling": coupling},
            start=lambda group: {"phase": 2 * np.pi * group.uniform(1)[:, 0], "order": np.zeros(0)},
        )  # fmt: skip
        means.append(result.states["conductor"]["order"][ticks // 2 :].mean())
    return means


CLAIMS = [
    Claim(
        f"order parameter, coupling {coupling} (order needs a coupling above 2)", order, value,
        "2,000 oscillators with random phases have an order parameter of about 0.022", spread=0.022, replicates=2,
        small=int(coupling > 2), sizes={"coupling": coupling}, small_sizes={"ticks": 200},
    )
    for coupling, value in ((4, 0.5**0.5), (1, 0))
]  # fmt: skip
