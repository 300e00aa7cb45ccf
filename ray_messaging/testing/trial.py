"""One run of a model on a local server, for `check_repeatable`, with a record of what each agent did in each step."""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, cast

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.run.crowd import CrowdSociety
from ray_messaging.cluster.run.run_actor import society_of
from ray_messaging.cluster.run.run_plan import GroupPlan, RunOptions, plan_groups
from ray_messaging.cluster.spec import SUBTOPICS
from ray_messaging.config import MessagingConfig, Steps
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import StepFailed
from ray_messaging.messager import Messager
from ray_messaging.model.exact import encode_exactly
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.step import Step
from ray_messaging.transports.steps import RedisSteps


class Sent(NamedTuple):
    """One message that an agent sent."""

    to_id: AgentId | None
    payload: str
    subtopic: str
    deliver_at: int


class Deeds(NamedTuple):
    """What one agent did in one step: the messages that it sent, in order, and the state that it left, encoded."""

    sent: list[Sent]
    state: bytes


class Trial(NamedTuple):
    """A run of a model: its agents, the number of groups, and the settings of the run."""

    agents: object
    groups: int
    until: int
    graph: object
    options: RunOptions
    seed: int


Attempt = dict[AgentId, Deeds]
Model = Callable[[], Any]  # returns the model, its `start` and its `shared`


class TrialCalls:
    """The results of remembered calls (`me.remember`), which all trials share.

    The class has the methods of RedisSteps by which a run stores such results on the server.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, bytes]] = {}

    async def remembered(self, _group: str, step: int) -> dict[str, bytes]:
        """Return the results of the remembered calls of a step, by the calls' keys."""
        return dict(self._kept.get(step, {}))

    async def remember(self, _group: str, _attempt: int, step: int, results: dict[str, bytes]) -> bool:
        """Store results of remembered calls of a step, by the calls' keys. Always return True: they are kept."""
        self._kept.setdefault(step, {}).update(results)
        return True

    def of(self, plan: GroupPlan, step: int) -> CallMemory:
        """Return the object by which one group's agents look up, and store, the results of calls in one step."""
        limit = MessagingConfig().payload_bytes
        return CallMemory(cast(RedisSteps, self), plan.name, 0, step, limit=limit, again=True)


async def run_trial(
    trial: Trial, model: Model, answers: TrialCalls, *, twice: bool = False, anew: bool = False
) -> list[list[Attempt]]:
    """Run a model; return, for each step, the attempts at it, each with the deeds of all agents.

    Args: `answers` stores the results of remembered calls (`me.remember`). With `twice`, each step has a first attempt
    that is abandoned, and then a second one. With `anew`, each group calls `model` before each step, as after a
    restart. Without `anew`, each group calls `model` only once.

    Raises: StepFailed if the model fails.
    """
    plans = plan_groups(trial.agents, trial.groups, trial.graph, 1, model=model()[0], by=trial.options.by)
    steps: list[list[Attempt]] = [[{} for _ in range(1 + twice)] for _ in range(trial.until)]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(LocalServer(steps=Steps(seed=trial.seed, groups=len(plans))))
        messagers = []
        for plan in plans:
            messager = await stack.enter_async_context(Messager(server, "trial", name=plan.name))
            await messager.host_agents(plan.agents, SUBTOPICS)
            messagers.append(messager)
        try:
            async with asyncio.TaskGroup() as tasks:
                for plan, messager in zip(plans, messagers, strict=True):
                    tasks.create_task(_live(trial, plan, messager, model, answers, steps, anew=anew))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several.exceptions[0].__cause__
    return steps


async def _live(
    trial: Trial,
    plan: GroupPlan,
    messager: Messager,
    model: Model,
    answers: TrialCalls,
    steps: list[list[Attempt]],
    *,
    anew: bool,
) -> None:
    """Run one group, and add what its agents did to `steps`.

    Args: with `anew`, `model` is called before each step, as after a restart.
    """
    society = None
    for number, attempts in enumerate(steps):
        for attempt in attempts:
            if society is None or anew:
                function, start, shared = model()
                society = society_of(plan, function, trial.options._replace(start=start), shared)
            async for step in messager.steps(until=number + 1):
                await society.run(step, answers.of(plan, number))
                states = _by_agent(step, society.states) if isinstance(society, CrowdSociety) else society.states
                attempt.update(_deeds(step, states))
                if attempt is not attempts[-1]:
                    break


def _deeds(step: Step, states: dict[Any, Any]) -> Attempt:
    found: Attempt = {agent: Deeds([], encode_exactly(_in_order(states[agent]), "the state")) for agent in step.agents}
    rows = []
    for batch in step.sends.batches():
        extension, lines = batch.extension, batch.lines
        assert extension is not None
        assert extension.ordinal is not None
        assert lines is not None
        deliver = np.broadcast_to(np.asarray(extension.deliver), batch.rows).tolist()
        senders = zip(batch.from_ids.tolist(), extension.ordinal.tolist(), batch.to_ids.tolist(), deliver, strict=True)
        for row, (from_id, ordinal, to_id, at) in enumerate(senders):
            assert from_id is not None
            rows.append((ordinal, from_id, Sent(to_id, lines.row(row).decode(), batch.topic_of(row), at)))
    for _, from_id, sent in sorted(rows, key=lambda row: row[0]):
        found[from_id].sent.append(sent)
    return found


def _by_agent(step: Step, states: dict[str, dict[str, Any]]) -> dict[AgentId, Any]:
    """Return the state of each agent, from the arrays of a group for which the model is called as a whole.

    Arrays whose length is not the number of agents belong to the group, and are left out.
    """
    (arrays,) = states.values()
    columns = {name: array.tolist() for name, array in arrays.items() if np.shape(array)[:1] == (len(step.agents),)}
    return {agent: {name: column[at] for name, column in columns.items()} for at, agent in enumerate(step.agents)}


def _in_order(value: Any) -> Any:  # noqa: ANN401 - a part of a state
    """Return a value in which the items of all dicts are sorted by key."""
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: encode_exactly(item[0], "a key"))
        return {key: _in_order(part) for key, part in items}
    return type(value)(map(_in_order, value)) if isinstance(value, list | tuple) else value


def run_for_parent() -> None:
    """Run the trial that the parent process sends on stdin; write its steps, or the model's error, to stdout."""
    path, trial, packed, answers = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - of the process that started this one
    sys.path[:] = path
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the model prints must not get into the pickled steps
    found: list[Attempt] | StepFailed
    try:
        steps = asyncio.run(run_trial(trial, lambda: pickle.loads(packed), answers, anew=True))  # noqa: S301 - the parent process has pickled the model
        found = [step[0] for step in steps]
    except StepFailed as error:
        found = error
    with answer:
        answer.write(pickle.dumps(found))
