"""The steps of a group, in the task that drives it."""

import secrets
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from ray_messaging.cluster.handles.actor_calls import insist
from ray_messaging.cluster.step_calls import OpenStep, StepDone, StepDriver
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.steps.agent_places import NO_PLACES, AgentPlaces
from ray_messaging.steps.inbox import StepInbox
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_loop import LEASE_S, check_until
from ray_messaging.steps.step_sends import StepSends

if TYPE_CHECKING:
    from ray_messaging.config import MessagingConfig


def group_steps(
    actor: Any,  # noqa: ANN401 - a Ray actor handle
    exp_id: str,
    actor_name: str,
    settings: "MessagingConfig",
    until: int,
) -> Iterator[Step]:
    """Yield the steps of a group; a call of its actor commits one step and opens the next."""
    until = check_until(until)
    driver = StepDriver(ray.get_runtime_context().get_task_id() or "a driver", secrets.token_hex(8))
    agents, done = NO_PLACES, None
    step: Step | None = None
    finished = threading.Event()
    signs = threading.Thread(target=_give_signs, args=(actor, driver, finished), name="step signs", daemon=True)
    signs.start()
    try:
        while True:
            call = partial(actor.advance_step.remote, driver, until, done)
            opened: OpenStep | None = insist(actor, call, actor_name=actor_name)
            if opened is None:
                return
            if opened.agents is not None:
                agents = AgentPlaces(AgentSet.of(opened.agents))
            step = Step(
                opened.number,
                seed=opened.seed,
                agents=agents,
                inbox=StepInbox(exp_id, agents, [] if opened.messages is None else [opened.messages]),
                sends=StepSends(agents, opened.number, 0, opened.horizon, settings.payload_bytes),
                state=opened.state,
                state_bytes=settings.state_bytes,
            )
            yield step
            sends = [batch.seal("", 0, 0) for batch in step.sends.take()]
            done = StepDone(step.number, sends, step.state, len(agents))
    finally:
        if step is not None:
            step.sends.end()
        finished.set()
        actor.end_steps.remote(driver)


def _give_signs(actor: Any, driver: StepDriver, finished: threading.Event) -> None:  # noqa: ANN401 - as above
    """Give the actor signs of life while a body runs, until the steps are finished."""
    while not finished.wait(LEASE_S / 3):
        actor.step_driver_alive.remote(driver)
