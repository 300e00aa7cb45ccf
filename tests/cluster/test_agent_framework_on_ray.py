"""Workflows of agent-framework in groups: processes are killed in each superstep, rules judge, and the log has all."""

import asyncio
import runpy
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("agent_framework", reason="agent-framework is not here: pip install --group agent-framework")
import ray
from agent_framework import Executor, WorkflowBuilder, WorkflowContext, WorkflowEvent, handler
from support import agent_workflows
from support.agent_workflows import SAMPLES, Step, own, shown
from support.cluster import die_once

from ray_messaging import Messaging, Steps, rules
from ray_messaging.compat.agent_framework import RayWorkflowRunner
from ray_messaging.errors import Closed, ConfigError, OutcomeUnknown, StepFailed

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]


@pytest.fixture(autouse=True)
def samples_by_value(by_value):
    ray.cloudpickle.register_pickle_by_value(agent_workflows)
    yield
    ray.cloudpickle.unregister_pickle_by_value(agent_workflows)


class Worker(Executor):
    """An executor that writes that it ran. Some kill their process once, when all others there have ended."""

    def __init__(self, name, folder, *, dies=False):
        super().__init__(name)
        self.folder, self.dies, self.heard = folder, dies, 0

    async def ran(self):
        if self.dies:
            calls = [task for task in asyncio.all_tasks() if task.get_name() == "ray_messaging remembered call"]
            await asyncio.gather(*({*calls} - {asyncio.current_task()}))
            die_once(self.folder / f"{self.id} was killed")
        with (self.folder / "ran").open("a") as file:
            file.write(f"{self.id}\n")
        self.heard += 1

    @handler
    async def work(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await self.ran()
        await ctx.send_message(f"{text}{self.id[-1]}")

    @handler
    async def join(self, texts: list[str], ctx: WorkflowContext[str, str]) -> None:
        await self.ran()
        ctx.set_state(self.id, self.heard)
        await ctx.send_message("".join(texts))
        await ctx.yield_output(f"{self.id} {''.join(texts)} {ctx.get_state('join0', 0)}")

    async def on_checkpoint_save(self):
        return {"heard": self.heard}

    async def on_checkpoint_restore(self, state):
        self.heard = state["heard"]


def layers(folder, count=2):
    """Make a workflow whose layers of three executors are each joined; in each superstep one process is killed."""
    before = Worker("join-", folder, dies=True)
    built = WorkflowBuilder(start_executor=before, name="layers")
    for layer in range(count):
        workers = [Worker(f"work{layer}-{n}", folder, dies=n == 1) for n in range(3)]
        after = Worker(f"join{layer}", folder, dies=True)
        built.add_fan_out_edges(before, workers).add_fan_in_edges(workers, after)
        before = after
    return built.build()


def test_a_process_is_killed_in_each_superstep_and_no_executor_that_has_ended_runs_again(exp_id, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "ours").mkdir()
    for mark in ("join-", "join0", "join1", "work0-1", "work1-1"):
        (tmp_path / "own" / f"{mark} was killed").touch()
    expected = asyncio.run(shown(lambda: layers(tmp_path / "own"), "x", {}, own))
    groups = {
        "one": ["join-", "work0-1", "work0-2", "join1"],
        "two": ["work0-0", "join0", "work1-0", "work1-1", "work1-2"],
    }
    with Messaging.start(exp_id, steps=Steps(), log_dir=tmp_path / "log") as messaging:
        with RayWorkflowRunner(messaging, groups=groups) as runner:
            found = asyncio.run(shown(lambda: layers(tmp_path / "ours"), "x", {}, runner.run))
        assert found == expected
        sent = messaging.log.query().to_pandas()
    ran = (tmp_path / "ours" / "ran").read_text().split()
    assert sorted(ran) == sorted((tmp_path / "own" / "ran").read_text().split())  # each once
    assert len([*(tmp_path / "ours").glob("* was killed")]) == 5
    assert set(zip(sent.from_id, sent.to_id, strict=True)) >= {("join-", "work0-1"), ("work1-2", "join1")}
    assert not sent.duplicated(["from_id", "to_id", "step"]).any()


class Speaks(Executor):
    """An executor that says words. After each it waits until the word was heard outside; once it kills its process."""

    def __init__(self, name, folder):
        super().__init__(name)
        self.folder = folder

    @handler
    async def speak(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        for word in text.split():
            await ctx.add_event(WorkflowEvent("data", executor_id=self.id, data=f"{self.id} {word}"))
            while not (self.folder / f"{self.id} {word}").exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.02)
            if word == "two":
                die_once(self.folder / f"{self.id} was killed")
        await ctx.send_message(text)

    @handler
    async def end(self, texts: list[str], ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(" ".join(texts))


def test_events_come_as_they_happen_and_none_comes_again_when_a_process_dies(exp_id, tmp_path):
    def make():
        first, left, right, last = (Speaks(name, tmp_path) for name in ("first", "left", "right", "last"))
        built = WorkflowBuilder(start_executor=first).add_fan_out_edges(first, [left, right])
        return built.add_fan_in_edges([left, right], last).build()

    async def listen(run):
        shown = []
        async for event in run("one two three", stream=True):
            if event.type == "data":
                (tmp_path / event.data).touch()
            shown.append((event.type, event.executor_id, event.data if event.type in ("data", "output") else None))
        return shown

    with Messaging.start(exp_id, steps=Steps()) as messaging, RayWorkflowRunner(messaging, groups=2) as runner:
        found = asyncio.run(listen(runner.attach(make).run))
    assert len([*tmp_path.glob("* was killed")]) == 3
    expected = asyncio.run(listen(make().run))

    def of(executor, shown):
        return [each for each in shown if each[1] == executor]

    for executor in (None, "first", "left", "right", "last"):  # left and right run at once
        assert of(executor, found) == of(executor, expected)
    assert found[:7] == expected[:7]
    assert found[-6:] == expected[-6:]


class Echoes(Executor):
    """An executor that says each word of its message."""

    @handler
    async def speak(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        for word in text.split():
            await ctx.yield_output(word)


def test_a_run_shows_no_events_of_an_earlier_run_that_was_cancelled(exp_id, tmp_path):
    loads, may_load = tmp_path / "loads", tmp_path / "may load"
    may_load.touch()

    def make():
        loads.touch()
        while not may_load.exists():
            time.sleep(0.02)
        return WorkflowBuilder(start_executor=Echoes("echoes")).build()

    async def said(run, text):
        return [event.data async for event in run(text, stream=True) if event.type == "output"]

    async def both(run):
        loads.unlink()
        may_load.unlink()
        listening = asyncio.create_task(said(run, "old words"))
        while not loads.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)
        listening.cancel()
        await asyncio.wait([listening])
        # Until then the executor handles the message of the cancelled run, and the other run waits.
        asyncio.get_running_loop().call_later(0.5, may_load.touch)
        return await said(run, "new things")

    with Messaging.start(exp_id, steps=Steps()) as messaging, RayWorkflowRunner(messaging, groups=1) as runner:
        assert asyncio.run(both(runner.attach(make).run)) == ["new", "things"]


class Long(Step):
    """A last executor that answers a long text with a text that is too long."""

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        self.heard += 1
        text = f"{text}>{self.id}{self.heard}"
        await ctx.yield_output(text * 2**20 if text.startswith("long") else text)


def test_the_runner_after_a_superstep_that_failed_gets_nothing_from_that_superstep(exp_id):
    def make():
        first, last = Step("first"), Long("last")
        return WorkflowBuilder(start_executor=first).add_edge(first, last).build()

    with Messaging.start(exp_id, steps=Steps()) as messaging:
        with RayWorkflowRunner(messaging, groups=2) as runner:
            assert asyncio.run(runner.run(make, "old")).get_outputs() == ["old>first1>last1"]
            with pytest.raises(StepFailed, match="payload_bytes"):
                asyncio.run(runner.run(make, "long"))
            with pytest.raises(Closed, match="make another RayWorkflowRunner"):
                asyncio.run(runner.run(make, "again"))
        with RayWorkflowRunner(messaging, groups=2) as later:
            for n, text in enumerate(("new", "newer"), 1):
                found = asyncio.run(later.run(make, text))
                assert found.get_outputs() == [f"{text}>first{n}>last{n}"]


def test_a_rule_blocks_a_message_and_people_are_asked(exp_id, tmp_path, monkeypatch):
    listed = [rules.BlackList([("first", "bob")])]
    make, message, answers = SAMPLES["asking"]
    with (
        Messaging.start(exp_id, rules=listed, steps=Steps(), log_dir=tmp_path / "log") as messaging,
        RayWorkflowRunner(messaging, groups=2) as runner,
    ):
        workflow = make()

        async def ask():
            found = await runner.run(workflow, message, checkpoint_storage=runner.checkpoints)
            (request,) = found.get_request_info_events()
            messaging.broadcast("*", {"of": "a stranger"})
            (warning,) = [each.data for each in found if each.type == "warning"]
            done = await runner.run(workflow, responses={request.request_id: answers["ann"][0]})
            return request.source_executor_id, warning, done.get_outputs()

        asked, warning, outputs = asyncio.run(ask())
        with pytest.raises(ConfigError, match="tools"):
            asyncio.run(runner.attach(workflow).run(message, tools=[print]))
        with pytest.raises(ConfigError, match="cancelled"):
            asyncio.run(workflow.cancel_pending_requests(["any"]))
        assert (asked, outputs) == ("ann", ["x>first1: yes>last1"])
        assert "'bob'" in warning
        assert "black_list" in warning
        with pytest.raises(ConfigError, match="already has a workflow"):
            runner.attach(make())
        locked = make()
        locked.executors["first"].lock = threading.Lock()
        with pytest.raises(ConfigError, match="Pass a function that builds the workflow"):
            RayWorkflowRunner(messaging).attach(locked)
        runner.close()
        with RayWorkflowRunner(messaging, groups=2) as later:
            workflow = later.attach(make())

            async def go_on():
                stored = {"checkpoint_storage": later.checkpoints}
                before = await later.checkpoints.get_latest(workflow_name="asking")
                told = dict.fromkeys(before.pending_request_info_events, "no")
                done = await workflow.run(responses=told, checkpoint_id=before.checkpoint_id, **stored)
                anew = await workflow.run("y", **stored)
                return [*done.get_outputs(), *(each.data.words[0] for each in anew.get_request_info_events())]

            assert asyncio.run(go_on()) == ["x>first1: no>last1", "y>first2"]
            send = messaging._user.messager.send_messages

            async def lose_the_answer(outgoing):
                await send(outgoing)
                raise OutcomeUnknown("no answer came")

            monkeypatch.setattr(messaging._user.messager, "send_messages", lose_the_answer)
            with pytest.raises(OutcomeUnknown):
                asyncio.run(workflow.run("lost"))
            monkeypatch.undo()
            with pytest.raises(Closed, match="an earlier superstep of it failed: make another RayWorkflowRunner"):
                asyncio.run(workflow.run("z"))
        with RayWorkflowRunner(messaging, groups=2) as last:
            (request,) = asyncio.run(last.run(make(), "z")).get_request_info_events()
            assert request.data.words[0] == "z>first1"
        assert messaging.log.balance().fates["blocked"] == 3


def test_the_example_asks_a_person(capsys):
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples/workflow.py"), run_name="__main__")
    told = [line for line in capsys.readouterr().out.splitlines() if "(raylet)" not in line]
    drafts = "ann on rain; bob on rain; cleo on rain"
    assert told == [f"asked: {drafts}", f"printed: {drafts}"]
