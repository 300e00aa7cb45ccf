"""A workflow of agent-framework in groups: three writers draft, an editor joins the drafts, and a person decides.

pip install "ray_messaging[agent-framework]"
python examples/workflow.py
"""

import asyncio

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler

from ray_messaging import Messaging, Steps
from ray_messaging.compat.agent_framework import RayWorkflowRunner


class Topic(Executor):
    """An executor that gives all writers the topic."""

    @handler
    async def begin(self, topic: str, ctx: WorkflowContext[str]) -> None:
        """Send the topic to the writers."""
        await ctx.send_message(topic)


class Writer(Executor):
    """An executor that writes a draft. A real writer would ask a language model."""

    @handler
    async def write(self, topic: str, ctx: WorkflowContext[str]) -> None:
        """Send a draft."""
        await ctx.send_message(f"{self.id} on {topic}")


class Editor(Executor):
    """An executor that joins the drafts, asks a person, and yields the drafts if the person takes them."""

    @handler
    async def join(self, drafts: list[str], ctx: WorkflowContext[None, str]) -> None:
        """Ask whether the drafts are taken."""
        await ctx.request_info("; ".join(drafts), bool)

    @response_handler
    async def decided(self, drafts: str, taken: bool, ctx: WorkflowContext[None, str]) -> None:  # noqa: FBT001
        """Yield the drafts if the person takes them."""
        await ctx.yield_output(f"printed: {drafts}" if taken else "nothing is printed")


def make_workflow():
    """Build the workflow. Each process calls this function."""
    topic, editor = Topic("topic"), Editor("editor")
    writers = [Writer(name) for name in ("ann", "bob", "cleo")]
    built = WorkflowBuilder(start_executor=topic, name="paper").add_fan_out_edges(topic, writers)
    return built.add_fan_in_edges(writers, editor).build()


async def main(messaging):
    """Run the workflow until it asks the person, and then go on with the person's answer."""
    with RayWorkflowRunner(messaging, groups=2) as runner:
        asked = await runner.run(make_workflow, "rain")
        (request,) = asked.get_request_info_events()
        print("asked:", request.data)
        done = await runner.run(make_workflow, responses={request.request_id: True})
        print(*done.get_outputs())


if __name__ == "__main__":
    with Messaging.start("paper", steps=Steps()) as messaging:
        asyncio.run(main(messaging))
