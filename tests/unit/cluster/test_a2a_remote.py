"""Outside agents as agents of a run in steps: what they answer, late, twice, wrongly or never."""

import gzip
import json
import pickle
import threading
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import pytest

pytest.importorskip("a2a.client", reason="a2a-sdk is not installed")

from a2a.types import StreamResponse
from support.outside_agents import Outside, application, garbage, served
from support.patience import WAIT_S
from support.step_society import open_step

from ray_messaging import Calls, run
from ray_messaging.cluster.a2a_remote import RemoteAgent, RemoteFailure, _origin, _task_after
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.errors import ConfigError
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.transports.step_values import Driver, StepSettings

CARD = json.dumps(
    {
        "name": "garbage",
        "description": "",
        "version": "1",
        "supportedInterfaces": [{"url": "URL", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
        "capabilities": {"streaming": False},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
    }
)


@pytest.fixture
def serve():
    """Return a function that serves an outside agent until the end of the test, and returns its URL."""
    with ExitStack() as stack:
        yield lambda make: stack.enter_context(served(make))


def remote(url, *, wait_s=20.0, late_steps=3, token=None, experiment="town"):
    return RemoteAgent("weather", url, experiment=experiment, token=token, wait_s=wait_s, late_steps=late_steps)


def asker(me, inbox):
    """Ask the remote agent in step 0, and keep what is heard, with its step."""
    for message in inbox:
        me.state.setdefault("heard", []).append((me.step, bool(message.in_reply_to), message.payload))
    if me.step == 0:
        me.state["asked"] = me.ask("weather", {"content": f"rain at {me.id}?"})


def ran(agent, until=3, model=asker, **options):
    models = {"person": model, "weather": agent}
    agents = {"person": [1], "weather": ["weather"]}
    return run(models, agents=agents, until=until, progress=False, **options)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("as_task", [True, False])
def test_an_outside_agent_answers_in_the_step_that_reads_the_question(serve, streaming, as_task):
    outside = Outside(lambda text: [f"{text} yes"], as_task=as_task)
    with remote(serve(partial(application, outside, streaming=streaming)), token="secret") as agent:
        result = ran(agent)
    assert result.states[1]["heard"] == [(2, True, {"content": "rain at 1? yes"})]
    assert outside.heard == ["rain at 1?"]
    assert outside.headers[0]["authorization"] == "Bearer secret"


def test_a_message_that_is_no_question_is_answered_by_a_message_that_names_it(serve):
    def sends(me, inbox):
        me.state["heard"] = [message.payload for message in inbox]
        if me.step == 0:
            me.send("weather", {"content": "rain?", "place": [1, 2.5]})

    with remote(serve(partial(application, Outside(lambda text: ["yes", "really"])))) as agent:
        result = ran(agent, model=sends)
    assert result.states[1]["heard"] == [{"content": "yes\nreally", "answers": "0-0-1"}]


@pytest.mark.parametrize("as_task", [True, False])
def test_of_two_answers_the_first_end_counts(serve, as_task):
    outside = Outside(lambda text: ["one", "two"], as_task=as_task)
    with remote(serve(partial(application, outside))) as agent:
        result = ran(agent)
    ((step, answers, payload),) = result.states[1]["heard"]
    assert (step, answers) == (2, True)
    assert payload == {"content": "one\ntwo" if as_task else "one"}


def test_a_late_answer_comes_in_a_later_step_and_the_step_waits_only_within_the_limit(serve):
    hold = threading.Event()
    outside = Outside(lambda text: ["at last"], hold=hold)

    def person(me, inbox):
        asker(me, inbox)
        if me.step == 3:
            hold.set()
            me.state["asked_of"] = len(outside.heard)

    with remote(serve(partial(application, outside)), wait_s=0.5, late_steps=10_000) as agent:
        result = ran(
            agent,
            until=lambda now: now["heard"].max() > 0,
            max_steps=10_000,
            collect=lambda me: {"heard": len(me.state.get("heard", ()))},
            model=person,
        )
    ((step, answers, payload),) = result.states[1]["heard"]
    assert step > 3
    assert (answers, payload) == (False, {"content": "at last", "answers": result.states[1]["asked"]})
    assert len(outside.heard) == 1


def test_who_never_answers_is_an_error_after_some_steps_and_the_run_goes_on(serve):
    outside = Outside(lambda text: ["never"], hold=threading.Event())
    with remote(serve(partial(application, outside)), wait_s=0.2, late_steps=2) as agent:
        result = ran(agent, until=6)
    ((step, _, payload),) = result.states[1]["heard"]
    assert step == 4  # asked in step 1; two more steps; the error is read in the step after
    assert "has not answered in time" in payload["error"]
    assert "waiting" not in result.states["weather"]
    outside.hold.set()


def test_a_dead_agent_is_an_error_and_the_run_goes_on(serve):
    with served(partial(application, Outside(lambda text: ["yes"]))) as url:
        pass
    with remote(url) as agent:
        result = ran(agent)
    ((step, answers, payload),) = result.states[1]["heard"]
    assert (step, answers) == (2, True)
    assert "agent card" in payload["error"]


def test_an_agent_that_fails_is_an_error(serve):
    def answer(text):
        raise ValueError("no \x1b[2J weather")

    with remote(serve(partial(application, Outside(answer)))) as agent:
        error = ran(agent).states[1]["heard"][0][2]["error"]
    assert error.isprintable()


@pytest.mark.parametrize(
    ("card", "body", "options"),
    [
        ("no json", "", {}),
        ("[]", "", {}),
        ("{}", "", {}),
        (CARD, "no json", {}),
        (CARD, "[1]", {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1}', {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1, "result": {}}', {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1, "result": []}', {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1, "result": {"task": {"status": {"state": "TASK_STATE_COMPLETED"}}}}', {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1, "result": {"message": {"parts": [{"url": "file:///etc/passwd"}]}}}', {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1, "result": {"message": {"parts": [{"text": "\\ud800"}]}}}', {}),
        (CARD, '{"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": ["y"]}}', {}),
        (CARD, "x" * 5_000_000, {}),
        (CARD, "moved", {"status": 301}),
        (CARD, "down", {"status": 503}),
        (CARD.replace("false", "true"), "data: {}\n\n", {"content_type": "text/event-stream"}),
        (CARD.replace("false", "true"), "event: error\ndata: x\n\n", {"content_type": "text/event-stream"}),
        (CARD.replace("false", "true"), "", {"content_type": "text/event-stream"}),
    ],
)
def test_garbage_is_an_error_in_the_answer_and_the_run_goes_on(serve, card, body, options):
    with remote(serve(lambda url: garbage(url, card, body, **options))) as agent:
        ((step, answers, payload),) = ran(agent).states[1]["heard"]
    assert (step, answers) == (2, True)
    assert payload["error"]
    assert len(payload["error"]) <= 500


def test_a_compressed_response_which_might_need_all_memory_is_an_error(serve):
    parts = [{"text": "x" * 6_000_000}]
    answer = {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": parts}},
    }
    body = gzip.compress(json.dumps(answer).encode())
    with remote(serve(lambda url: garbage(url, CARD, body, headers={"content-encoding": "gzip"}))) as agent:
        assert "compressed (gzip)" in ran(agent).states[1]["heard"][0][2]["error"]


def test_the_token_goes_to_no_other_host_than_that_of_the_url(serve):
    thief = Outside(lambda text: ["thanks"])
    elsewhere = serve(partial(application, thief))
    url = serve(partial(application, Outside(lambda text: ["yes"]), leads_to=elsewhere))
    with remote(url, token="secret") as agent:
        assert "another host" in ran(agent).states[1]["heard"][0][2]["error"]
    assert thief.heard == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.org/x", "https://A.org:443/y", True),
        ("http://a.org:80", "http://a.org/y", True),
        ("https://a.org", "http://a.org", False),
        ("http://a.org", "http://a.org:8080", False),
        ("http://a.org", "http://b.org", False),
    ],
)
def test_a_card_may_name_the_port_that_the_url_leaves_out(one, other, same):
    assert (_origin(one) == _origin(other)) is same


async def test_without_steps_a_late_or_wrong_answer_is_an_error_of_the_handler(serve):
    question = SimpleNamespace(id="west-1-0", payload={"content": "rain?"}, expects_answer=True, from_id=1)
    hold = threading.Event()
    with remote(serve(partial(application, Outside(lambda text: ["never"], hold=hold))), wait_s=0.2) as late:
        with pytest.raises(RemoteFailure, match=r"has not answered within 0\.2 s"):
            await late._handle(question)
        hold.set()
    with (
        remote(serve(lambda url: garbage(url, CARD, "no json"))) as wrong,
        pytest.raises(RemoteFailure, match="JSON Decode Error"),
    ):
        await wrong._handle(question)
    with remote(serve(partial(application, Outside(lambda text: ["yes"])))) as right:
        assert await right._handle(question) == {"content": "yes"}


async def test_a_late_answer_is_fetched_by_its_task_if_the_process_has_died_meanwhile(serve):
    hold = threading.Event()
    outside = Outside(lambda text: ["at last"], hold=hold)
    with remote(serve(partial(application, outside)), wait_s=2) as first, pickle.loads(pickle.dumps(first)) as second:
        question = ("0-0-1", {"content": "rain?"})
        while (late := await first._within_limit(*question, None, wait=True)) == {"late": None}:
            pass  # a slow machine: the task is not known yet
        hold.set()
        while "late" in (found := await second._within_limit(*question, late["late"], wait=True)):
            pass
    assert found == {"answer": {"content": "at last"}}
    assert len(outside.heard) == 1


def test_runs_that_share_a_store_of_calls_ask_each_for_itself(serve, tmp_path):
    outside = Outside(lambda text: ["yes"])
    with remote(serve(partial(application, outside))) as agent:
        for _ in range(2):
            assert ran(agent, calls=Calls(store=tmp_path / "calls")).states[1]["heard"] == [
                (2, True, {"content": "yes"})
            ]
    assert len(outside.heard) == 2


@pytest.mark.parametrize("size", [1_500, 20_000])  # too large for a message here, and for a remembered call, too
async def test_an_answer_that_is_too_large_is_an_error_and_the_run_goes_on(serve, transports, size):
    steps = (await transports()).steps
    await steps.begin(StepSettings())
    await steps.join("east")
    attempt = (await steps.take("east", Driver("task", 0), WAIT_S)).attempt
    await steps.open("east", attempt, 0)
    memory = CallMemory(steps, "east", attempt, 0, limit=10_000, again=True)
    sent = []
    with remote(serve(partial(application, Outside(lambda text: ["x" * size], as_task=False)))) as agent:

        async def model(me, inbox):
            if me.id == 1:
                me.state["waiting"] = [["0-0-1", 0, {"content": "rain?"}, me.step, None]]
                await agent(me, inbox)
                sent.append(me.state)

        step = open_step()
        await AgentLoop("east", model).run(step, memory)
    assert sent == [{}]
    assert len(step.sends.to_ids) == 1


def test_the_messages_of_different_experiments_have_different_ids(serve):
    outside = Outside(lambda text: ["yes"])
    url = serve(partial(application, outside))
    for name in ("town", "fork of town"):
        with remote(url, experiment=name) as agent:
            ran(agent)
    assert outside.ids == ["town/weather/0-0-1", "fork of town/weather/0-0-1"]


def test_a_handle_travels_to_the_process_of_a_group_and_shows_no_token():
    with remote("http://127.0.0.1:1/", token="secret") as agent:
        assert "secret" not in repr(agent)
        assert repr(pickle.loads(pickle.dumps(agent))) == repr(agent) == "RemoteAgent('weather', http://127.0.0.1:1/)"


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("weather", {}, "is not the URL of an agent"),
        ("ftp://x/", {}, "is not the URL of an agent"),
        ("http://u:p@x/", {}, "has a user name or a password"),
        ("http://x/", {"wait_s": 0}, "^wait_s=0 must be a number of seconds above 0$"),
        ("http://x/", {"late_steps": -1}, "^late_steps=-1 must be a number of steps, 0 or more$"),
    ],
)
def test_what_cannot_be(url, options, told):
    with pytest.raises(ConfigError, match=told):
        remote(url, **options)


def test_a_response_without_content_is_no_task():
    with pytest.raises(RemoteFailure, match="neither an A2A message nor an A2A task"):
        _task_after(StreamResponse(), None)
