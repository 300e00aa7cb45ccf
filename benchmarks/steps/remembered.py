"""Calls that agents remember, in one process and without a server: the time that a call costs its group."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from ray_messaging.cluster.run.model_thread import Holder
from ray_messaging.cluster.run.step_calls import RememberedCalls
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.steps.call_memory import CallMemory

AGENTS, CALLS = 100, 100  # and the calls of each agent
PROMPT = "You are agent {} of a town, and you have heard: " + "they say the park is full today. " * 12


async def ask(prompt: str, *, temperature: float) -> dict[str, Any]:
    """Answer at once: a real model takes its time elsewhere."""
    return {"text": prompt[:12], "warm": temperature}


class _Store:
    """A server that keeps everything at once."""

    async def remembered(self, _group: str, _step: int) -> dict[str, bytes]:
        return {}

    async def remember(self, *_kept: object) -> bool:
        return True


async def _step(answers: dict[str, bytes] | None) -> tuple[float, RememberedCalls]:
    store: Any = _Store()
    memory = CallMemory(store, "group0", 1, 0, limit=10**6, again=False)
    if answers is not None:
        memory.parent = lambda: answers
    calls = RememberedCalls(memory, ThreadPoolExecutor(1), Holder("group0"), recorded=True)

    async def person(me: Any) -> None:
        for number in range(CALLS):
            await calls.call(me, ask, (prompts[number],), {"temperature": 0.5})

    prompts = [PROMPT.format(number) for number in range(CALLS)]
    began = time.process_time()
    await asyncio.gather(*(person(SimpleNamespace(id=agent, step=0)) for agent in range(AGENTS)))
    return (time.process_time() - began) / (AGENTS * CALLS) * 1e6, calls


def measure() -> tuple[float, float]:
    """Return the microseconds of CPU of a call that is made, and of one whose answer an earlier run has."""
    tune_process()
    asyncio.run(_step(None))  # a group runs many steps: its memory and code are warm
    made, calls = asyncio.run(_step(None))
    answers = {record.key: bytes(record.result) for record in calls.records()}
    known, again = asyncio.run(_step(answers))
    assert {record.source for record in again.records()} == {"parent"}
    return made, known
