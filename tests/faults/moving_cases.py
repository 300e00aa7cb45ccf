"""Cases in which agents move between receivers, while senders send and all of them are killed."""

import random
import time
from functools import partial
from itertools import chain, repeat

from faults.case import Case
from faults.ledger import read_lines
from faults.stage import Stage, until

ENDS = ("before", "after", "any", "server")  # before and after a call that moves agents, at any moment, or the server's


class Homes:
    """Two receivers, between which agents move to and fro, under load from two senders."""

    def __init__(self, stage, agents, chance, share):
        self.stage, self.chance = stage, chance
        self.now = [
            stage.receiver(hosted, moves_to=[f"group-{1 - at}"], move_share=share, limit=5000, seed=self.seed())
            for at, hosted in enumerate((range(agents // 2), range(agents // 2, agents)))
        ]

    def seed(self):
        return self.chance.randrange(2**32)

    def replace(self, at, **crash):
        """Kill a receiver, and start its successor."""
        self.now[at] = self.stage.replace(self.now[at], seed=self.seed(), **{"crash": None} | crash)

    def dies_moving(self, at, when, nth):
        """Replace a receiver by one that dies at a call that moves agents, and that one by another."""
        self.replace(at, crash=when, nth=nth)
        until(lambda: self.now[at].process.exitcode is not None, "its death")
        self.replace(at)

    def settle(self):
        """Let no more agents move."""
        for receiver in self.now:
            receiver.tell("still")
        for receiver in self.now:
            receiver.hear("still")

    def moved(self):
        """Count the moves of agents of which their receivers learned."""
        notes = [line[3] for path in self.stage.inboxes for line in read_lines(path) if line[0] == "note"]
        return sum(int(note.split()[1]) for note in notes if note.startswith("moved "))


def agents_move(folder, *, agents, rounds, seed, rate, per_call, share=0.02):
    """Let agents move while their receivers and the server die."""
    chance = random.Random(seed)
    with Stage(folder, appendfsync="always") as stage:
        homes = Homes(stage, agents, chance, share)
        for by in (-1, -2):  # agents that nobody hosts
            stage.sender([by], range(agents), rate=rate, per_call=per_call, way="columns", name=f"town{by}")
        stage.more_received(4 * per_call)
        for end in chain(ENDS, (chance.choice(ENDS) for _ in repeat(None, rounds - len(ENDS)))):
            if end == "server":
                stage.server.kill()
                stage.server.start()
            elif end == "any":
                homes.replace(chance.randrange(2))
            else:
                homes.dies_moving(chance.randrange(2), end, chance.randrange(1, 4))
            stage.healed()
            stage.more_received(2 * per_call)
            time.sleep(chance.random() * 0.2)  # any moment will do
        for sender in stage.alive("sender"):
            sender.end()
        homes.settle()
        stage.facts |= {"rounds": rounds, "moved": homes.moved()}
        assert homes.moved() >= agents // 10
        return stage.finish()


CASES = [
    Case(
        "agents move while receivers and server are killed",
        partial(agents_move, agents=400, rounds=5, seed=1, rate=40, per_call=100, share=0.1),
    ),
    Case(
        "10,000 of 100,000 agents move while receivers and server are killed",
        partial(agents_move, agents=100_000, rounds=4, seed=2, rate=8, per_call=2000),
    ),
]
