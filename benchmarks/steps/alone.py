"""The processor time of one group's steps by agent, without Ray and server: `python -m benchmarks.steps.alone AGENTS`.

It is for comparing two states of the code on a busy machine, and for a profile:

    py-spy record -r 200 -f speedscope -o steps.json -- python -m benchmarks.steps.alone 100000

Each agent hears in a step what the group sent in the step before.
"""

import asyncio
import sys
import time

from benchmarks.steps.mesa import knows_first, person
from benchmarks.steps.runs import person as mood_of
from ray_messaging.addressing.directory import Directory
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_inbox import StepInbox
from ray_messaging.steps.step_sends import StepSends

STEPS, WARM = 14, 8  # the rumour has come to nearly everybody after eight steps
LIMIT = 2**30
MODELS = {"a rumour": (person, knows_first), "moods, with random numbers": (mood_of, None)}


async def measure(model, start, agents: int) -> float:
    """Return the least microseconds of processor time of an agent and step."""
    society = AgentLoop("alone", model, start=start, shared=agents)
    places, audiences = AgentPlaces(AgentSet.of(range(agents))), Directory("alone").audiences
    state, batches, taken = None, [], []
    for number in range(STEPS):
        begun = time.process_time()
        sends = StepSends(places, number, 1, 1, LIMIT, audiences)
        inbox = StepInbox("alone", places, batches)
        step = Step(number, seed=7, agents=places, inbox=inbox, sends=sends, state=state, state_bytes=LIMIT)
        await society.run(step)
        state, batches = step.state, sends.batches()
        taken.append(1e6 * (time.process_time() - begun) / agents)
    return min(taken[WARM:])


def main() -> None:
    """Measure each model, and print a line for each."""
    agents = int(sys.argv[1])
    tune_process()
    for name, (model, start) in MODELS.items():
        print(f"{name}: {asyncio.run(measure(model, start, agents)):.2f} us of processor time for an agent and step")


if __name__ == "__main__":
    main()
