"""Check that a model is repeatable: its agents do the same in each run, whatever groups and processes they are in."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import cloudpickle

from ray_messaging.cluster.handles.own_loop import run_in_own_loop
from ray_messaging.cluster.run.arguments import AgentModel, Agents, Edges, GroupModel
from ray_messaging.cluster.run.run_plan import RunOptions, check_run
from ray_messaging.cluster.unpicklable import dumped, sent
from ray_messaging.errors import MessagingError, NotRepeatable, StepFailed
from ray_messaging.model.exact import decode_exactly
from ray_messaging.model.whole_numbers import check_until
from ray_messaging.testing.trial import Attempt, Deeds, Trial, TrialCalls, run_trial

_GROUPS = 2
_CHILD = "from ray_messaging.testing.trial import run_for_parent; run_for_parent()"
_AGAIN = (
    "when the step ran again",
    "Use me.rng for random numbers, me.step for the time, and me.state for all values that are kept; call models and "
    "services through me.remember",
)
_GROUPED = (
    "with the agents in two groups",
    "Keep nothing in Python objects that agents share, and use neither the group's name nor its size",
)
_ELSEWHERE = (
    "in another process, which begins each step with a new copy of the model, and hashes strs differently",
    "Sort sets before you iterate over them or sum them up, and keep all values in me.state, none in globals or "
    "closures",
)


def check_repeatable(
    model: AgentModel | GroupModel | Mapping[str, AgentModel] | Mapping[str, GroupModel],
    *,
    agents: Agents,
    until: int,
    graph: Edges | None = None,
    start: Callable[..., dict[str, Any]] | Mapping[str, Callable[..., dict[str, Any]]] | None = None,
    shared: object = None,
    by: Literal["agent", "group"] = "agent",
    seed: int = 0,
) -> None:
    """Check that a model gives the same result in each run. You need neither Ray nor a server for this.

    The model runs three times. In the first run each step is run twice. In the second run the agents are in two groups.
    The third run is in another process, which hashes strs differently and begins each step with a fresh copy of the
    model. The messages and states of each agent must be equal in all runs. Some faults show only by chance, or only
    after some steps, so use enough agents and steps.

    Args: as for `Messaging.run`.

    Raises: NotRepeatable if a run differs from the first one. The error has the first step and agent where the runs
    differ, and the message or state that differs. StepFailed if the model fails in the first run.
    """
    options = RunOptions(None, by, 1, None)
    check_run(model, options._replace(start=start))
    check_until(until)
    # Each run reads the agents and the graph, and an iterator can be read only once.
    agents = [*agents] if isinstance(agents, Iterator) else agents
    graph = [*graph] if isinstance(graph, Iterator) else graph
    trial, answers = Trial(agents, 1, until, graph, options, seed), TrialCalls()
    whole = model, start, shared
    packed = _packed(whole)  # the model is pickled before it runs, because it may change its globals
    twice = run_in_own_loop(lambda: run_trial(trial, lambda: whole, answers, twice=True))
    steps = [first for first, _ in twice]
    _compare(steps, [again for _, again in twice], *_AGAIN)
    try:
        grouped = run_in_own_loop(lambda: run_trial(trial._replace(groups=_GROUPS), lambda: whole, answers))
    except StepFailed as error:
        raise _failed(error, *_GROUPED) from error
    _compare(steps, [step[0] for step in grouped], *_GROUPED)
    _compare(steps, _elsewhere(trial, packed, answers), *_ELSEWHERE)


def _elsewhere(trial: Trial, packed: bytes, answers: TrialCalls) -> list[Attempt]:
    """Run the model in another process, and return the steps of that run."""
    env = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    done = subprocess.run(  # noqa: S603 - this very Python
        [sys.executable, "-c", _CHILD],
        input=dumped((sys.path, trial._replace(groups=_GROUPS + 1), packed, answers)),
        env=env,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise MessagingError(
            f"the process that runs the model again ended with exit code {done.returncode}: see its stderr"
        )
    found = pickle.loads(done.stdout)  # noqa: S301 - written by our own process
    if isinstance(found, StepFailed):
        raise _failed(found, *_ELSEWHERE)
    steps: list[Attempt] = found
    return steps


def _packed(objects: tuple[Any, ...]) -> bytes:
    """Pickle a model together with the globals that it uses, so that each copy has globals of its own.

    If that fails, pickle the model without the globals.
    """
    module = sys.modules.get(getattr(objects[0], "__module__", None) or "")
    if module is not None and module.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(module)
        try:
            with suppress(Exception):  # any error is possible, because a global may be a lock, or a client
                return dumped(objects)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
    return bytes(sent("the model", objects, dumped))


def _compare(mine: Sequence[Attempt], theirs: Sequence[Attempt], when: str, hint: str) -> None:
    """Raise NotRepeatable for the first difference between two runs, if there is one.

    Args: for the error, `when` says what was different about the second run, and `hint` what to do.
    """
    for step, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        for agent, deeds in one.items():
            if deeds != other[agent]:
                what, first, second = _difference(deeds, other[agent])
                raise NotRepeatable(
                    f"step {step} is not repeatable: agent {agent!r} has another {what} {when}: {first}, and then "
                    f"{second}. {hint} (docs/repeatability.md)",
                    step=step,
                    agent=agent,
                    what=what,
                    mine=first,
                    theirs=second,
                )


def _difference(one: Deeds, other: Deeds) -> tuple[str, object, object]:
    """Return "message" and the first message in which two runs differ, as each run sent it.

    If all messages are equal, return "state" and the state in each run.
    """
    for place in range(max(len(one.sent), len(other.sent))):
        mine, theirs = (deeds.sent[place] if place < len(deeds.sent) else None for deeds in (one, other))
        if mine != theirs:
            return "message", mine, theirs
    return "state", decode_exactly(one.state), decode_exactly(other.state)


def _failed(error: StepFailed, when: str, hint: str) -> NotRepeatable:
    """Build the error for a model that fails in a later run, but not in the first one."""
    return NotRepeatable(
        f"step {error.step} is not repeatable: the model fails {when}: {error}. {hint} (docs/repeatability.md)",
        step=error.step,
        agent=error.agent,
        what="failure",
        mine=None,
        theirs=str(error),
    )
