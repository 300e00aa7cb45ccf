"""AgentScope's side of the number game, in its own environment: prints the seconds of each round as JSON.

Runs in the environment that `game` builds, and knows nothing of ray_messaging. All participants are on one server
process, as one call each; they answer at once.
"""

import json
import sys
import time

import agentscope
from agentscope.agents import AgentBase
from agentscope.message import Msg
from agentscope.rpc import async_func
from agentscope.server import RpcAgentServerLauncher


class Participant(AgentBase):
    """An agent that guesses two thirds of the average it has heard."""

    def __init__(self, name: str, first: float) -> None:
        super().__init__(name=name)
        self.guess = first

    @async_func
    def reply(self, x: Msg) -> Msg:
        """Answer with a guess."""
        if x.metadata["average"] is not None:
            self.guess = x.metadata["average"] * 2 / 3
        return Msg(self.name, "my guess", role="assistant", metadata={"number": self.guess})


def play(agents: int, rounds: int) -> list[float]:
    """Play the game; return the seconds of each round."""
    agentscope.init(
        project="game", save_dir="/tmp/agentscope-game", save_log=False, save_code=False, save_api_invoke=False
    )
    server = RpcAgentServerLauncher(
        host="localhost", custom_agent_classes=[Participant], local_mode=True, capacity=16, max_timeout_seconds=60
    )
    server.launch()
    try:
        where = {"host": "localhost", "port": server.port}
        crowd = [Participant(name=f"p{n}", first=n % 100, to_dist=dict(where)) for n in range(agents)]
        average, took = None, []
        for _ in range(rounds):
            begun = time.perf_counter()
            question = Msg("moderator", "Guess two thirds of the average", role="user", metadata={"average": average})
            answers = [agent.reply(question) for agent in crowd]
            numbers = [answer.result().metadata["number"] for answer in answers]
            average = sum(numbers) / len(numbers)
            took.append(time.perf_counter() - begun)
        return took
    finally:
        server.shutdown()


if __name__ == "__main__":
    agents_, rounds_ = map(int, sys.argv[1:])
    found = play(agents_, rounds_)
    print(json.dumps({"version": agentscope.__version__, "seconds": found}))
