"""Workflows of agent-framework in groups: processes are killed in each superstep, rules judge, and the log has all."""

import asyncio
from collections import Counter

import pytest

pytest.importorskip("agent_framework", reason="agent-framework is not here: pip install --group agent-framework")
from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler
from support import agent_workflows
from support.agent_workflows import SAMPLES, own, shown
from support.cluster import die_once

import ray
from ray_messaging import Messaging, Steps, rules
from ray_messaging.compat.agent_framework import RayWorkflowRunner

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]


@pytest.fixture(autouse=True)
def samples_by_value(by_value):
    ray.cloudpickle.register_pickle_by_value(agent_workflows)
    yield
    ray.cloudpickle.unregister_pickle_by_value(agent_workflows)


class Worker(Executor):
    """It writes that it ran, and its process is killed once in each superstep, after another executor has ended."""

    def __init__(self, id, folder, layer):
        super().__init__(id)
        self.folder, self.layer, self.heard = folder, layer, 0

    @handler
    async def work(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        if self.id.endswith("-1"):  # the second of its layer, in a group with the third
            await asyncio.to_thread(wait_for_file, self.folder / f"{self.layer}-2.done")
            die_once(self.folder / f"killed-{self.layer}")
        with (self.folder / "ran").open("a") as file:
            file.write(f"{self.id}\n")
        self.heard += 1
        await ctx.send_message(f"{text}{self.id[-1]}")

    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        with (self.folder / "ran").open("a") as file:
            file.write(f"{self.id}\n")
        self.heard += 1
        text = "".join(texts)
        await ctx.send_message(text)
        await ctx.yield_output(f"{self.id} {self.heard}")

    async def on_checkpoint_save(self):
        return {"heard": self.heard}

    async def on_checkpoint_restore(self, state):
        self.heard = state["heard"]
