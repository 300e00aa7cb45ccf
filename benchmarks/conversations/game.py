"""The number game: a moderator asks everybody for two thirds of the average, and everybody answers, round after round.

All sides answer at once, without a model. Ours asks by columns, in two groups for the crowd; plain Ray makes a call for
each agent, and so does AgentScope (see `agentscope_game`).
"""

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import ray

from benchmarks.setup import environments
from ray_messaging import Messaging, columns

ENVIRONMENT = "agentscope-0.1.6"
MANY, FEW = 1_000_000, 1_000
CROWDS = 2
PATIENCE_S = 600
GAME = Path(__file__).with_name("agentscope_game.py")


@ray.remote(num_cpus=0)
class Crowd:
    """Some of the players, in an actor of one's own."""

    async def open(self, messaging: Messaging, name: str, agents: range) -> None:
        """Host the agents."""
        self._messager = await messaging.open_messager(name, agents)
        self._first = agents[0]
        self._guesses = np.random.default_rng(self._first).uniform(0, 100, len(agents))

    async def play(self) -> None:
        """Answer for ever; what a player hears moves its guess."""
        while True:
            questions = await self._messager.fetch_messages(timeout=None)
            average = questions[0].payload["average"]
            places = questions.to_ids - self._first
            if average is not None:
                self._guesses[places] += average * 2 / 3 - self._guesses[places]
            await self._messager.reply_columns(questions, columns(number=self._guesses[places]))


@ray.remote(num_cpus=0)
class Moderator:
    """The moderator, in an actor of one's own."""

    async def open(self, messaging: Messaging, agents: int) -> None:
        """Host the moderator, behind the players."""
        self._messager = await messaging.open_messager("moderator", [agents])
        self._agents = np.arange(agents)

    async def play(self, rounds: int) -> list[float]:
        """Play; return the seconds of each round. Raises RuntimeError where somebody has not answered."""
        average, took = None, []
        for _ in range(rounds):
            begun = time.perf_counter()
            answers = await self._messager.ask_columns(
                len(self._agents), self._agents, {"average": average}, timeout=PATIENCE_S
            )
            await answers.wait()
            numbers = answers.column("number")
            average = float(numbers.mean())
            took.append(time.perf_counter() - begun)
            if len(numbers) != len(self._agents):
                raise RuntimeError(f"{len(numbers):,} of {len(self._agents):,} players have answered")
        return took


class Ours:
    """The game by columns."""

    def __init__(self, agents: int) -> None:
        self.agents = agents
        self._messaging = Messaging.start(f"game-{agents}")
        self._moderator, self._crowds = Moderator.remote(), [Crowd.remote() for _ in range(CROWDS)]
        each = agents // CROWDS
        ray.get(
            [self._moderator.open.remote(self._messaging, agents)]
            + [
                crowd.open.remote(self._messaging, f"crowd{n}", range(n * each, (n + 1) * each))
                for n, crowd in enumerate(self._crowds)
            ]
        )
        self._playing = [crowd.play.remote() for crowd in self._crowds]

    def rounds_s(self, rounds: int) -> list[float]:
        """Play; return the seconds of each round."""
        return ray.get(self._moderator.play.remote(rounds))

    def shutdown(self) -> None:
        """End the game."""
        for actor in (self._moderator, *self._crowds):
            ray.kill(actor)
        self._messaging.shutdown()


@ray.remote(num_cpus=0)
class RayCrowd:
    """Some of the players of plain Ray: a call for each."""

    def __init__(self, agents: range) -> None:
        self._guesses = {agent: float(agent % 100) for agent in agents}

    def ask(self, agent: int, question: dict) -> dict:
        """Answer for one player."""
        if question["average"] is not None:
            self._guesses[agent] = question["average"] * 2 / 3
        return {"number": self._guesses[agent]}


class PlainRay:
    """The game by Ray calls, one for each player."""

    def __init__(self, agents: int) -> None:
        each = agents // CROWDS
        self.agents = agents
        self._crowds = [RayCrowd.remote(range(n * each, (n + 1) * each)) for n in range(CROWDS)]
        self._where = [self._crowds[agent // each] for agent in range(agents)]

    def rounds_s(self, rounds: int) -> list[float]:
        """Play; return the seconds of each round."""
        average, took = None, []
        for _ in range(rounds):
            begun = time.perf_counter()
            calls = [crowd.ask.remote(agent, {"average": average}) for agent, crowd in enumerate(self._where)]
            numbers = [answer["number"] for answer in ray.get(calls)]
            average = sum(numbers) / len(numbers)
            took.append(time.perf_counter() - begun)
        return took

    def shutdown(self) -> None:
        """End the game."""
        for crowd in self._crowds:
            ray.kill(crowd)


def agentscope_s(envs: Path, agents: int, rounds: int) -> list[float]:
    """Play in AgentScope, in its own environment; return the seconds of each round."""
    environments.build(envs, [ENVIRONMENT], say=lambda _: None)
    python = environments.python(envs, ENVIRONMENT)
    command = [python, GAME, str(agents), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
    return json.loads(done.stdout.splitlines()[-1])["seconds"]
