"""Agents for clients outside, asked by the client of the A2A SDK: answers, failures, strangers and attacks."""

import asyncio
import json
import math
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("a2a.client", reason="a2a-sdk is not installed")

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_data_parts, get_text_parts, new_data_part, new_text_part, new_url_part
from a2a.types import CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest, TaskState
from google.protobuf import json_format
from support.interceptors import interceptor_with

from ray_messaging import rules
from ray_messaging.cluster.a2a_parts import parts_of, payload_of
from ray_messaging.cluster.a2a_server import _MOST_BYTES, _MOST_TASKS, A2AServer, _application, _Guard, _LastTasks
from ray_messaging.errors import ConfigError, InvalidPayload

TOKEN = "s3cret-token"


async def think(message):
    """Answer what an agent is asked."""
    text = message.payload.get("content", "")
    if "fail" in text:
        raise ValueError("I cannot")
    if "huge" in text:
        return {"n": 2**53 + 1}
    if "wait" in text:
        await asyncio.sleep(60)
    if "whole" in text:
        return {"got": message.payload, "half": 0.5}
    return {"content": f"{message.to_id} heard {text}"}


@pytest.fixture
async def outside(messagers):
    """Serve the agents 1, 7 and "a/b c" for clients outside; return a function that makes an HTTP client."""
    interceptor = interceptor_with(rules.Pattern(["casino"]))
    group = await messagers(interceptor, name="group", host=[1, 7, 8, "a/b c"])
    user = await messagers(interceptor)
    serving = asyncio.create_task(group.serve(think))
    app = _Guard(_application(user, frozenset([1, 7, "a/b c"]), "town", 5.0), TOKEN)

    def http(token=TOKEN):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", headers=headers)

    yield http
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def client_of(http, agent="7", streaming=True):
    """Make the SDK's client of an agent, by its card."""
    async with http:
        card = await A2ACardResolver(http, f"http://here/agents/{agent}").get_agent_card()
        async with ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card) as client:
            yield client


def message(*parts):
    return SendMessageRequest(message=Message(message_id="m1", role=Role.ROLE_USER, parts=parts))


async def events_of(client, *parts):
    return [event async for event in client.send_message(message(*parts))]


def artifact(event):
    return event.artifact_update.artifact.parts if event.HasField("artifact_update") else event.task.artifacts[0].parts


async def test_each_agent_has_a_card_and_its_messages_are_tasks_in_a_stream(outside):
    async with client_of(outside()) as client:
        events = await events_of(client, new_text_part("hello"))
    assert client._card.name == "town/7"
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds[0] == "task"
    assert kinds[-1] == "status_update"
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    (answer,) = (event for event in events if event.HasField("artifact_update"))
    assert get_text_parts(artifact(answer)) == ["7 heard hello"]


@pytest.mark.parametrize(("agent", "path"), [("1", "1"), ("a/b c", "a%2Fb%20c")])
async def test_without_a_stream_the_task_comes_once_with_its_answer(outside, agent, path):
    async with client_of(outside(), path, streaming=False) as client:
        (event,) = await events_of(client, new_text_part("hello"))
        known = await client.get_task(GetTaskRequest(id=event.task.id))
    assert get_text_parts(artifact(event)) == [f"{agent} heard hello"]
    assert known.status.state == TaskState.TASK_STATE_COMPLETED


async def test_data_are_the_payload_and_the_answer(outside):
    async with client_of(outside(), streaming=False) as client:
        (event,) = await events_of(client, new_text_part("whole"), new_data_part({"n": 3, "list": [1, 2.5, None]}))
    assert get_data_parts(artifact(event)) == [
        {"got": {"content": "whole", "n": 3, "list": [1, 2.5, None]}, "half": 0.5}
    ]


@pytest.mark.parametrize(
    ("parts", "state", "why"),
    [
        ([new_text_part("fail")], TaskState.TASK_STATE_FAILED, "I cannot"),
        ([new_text_part("huge")], TaskState.TASK_STATE_FAILED, "cannot hold 9007199254740993 exactly"),
        ([new_text_part("casino")], TaskState.TASK_STATE_REJECTED, "pattern"),
        ([new_url_part("file:///etc/passwd")], TaskState.TASK_STATE_REJECTED, "or has files or URLs"),
    ],
)
async def test_a_question_that_fails_or_that_a_rule_blocks_ends_its_task_with_the_reason(outside, parts, state, why):
    async with client_of(outside(), streaming=False) as client:
        (event,) = await events_of(client, *parts)
    assert event.task.status.state == state
    assert why in event.task.status.message.parts[0].text


async def test_a_task_can_be_cancelled(outside):
    async with client_of(outside(), streaming=False) as client:
        request = message(new_text_part("wait"))
        request.configuration.return_immediately = True
        (event,) = [event async for event in client.send_message(request)]
        cancelled = await client.cancel_task(CancelTaskRequest(id=event.task.id))
    assert cancelled.status.state == TaskState.TASK_STATE_CANCELED


async def test_the_questions_that_wait_for_an_agent_are_limited(outside, monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.a2a_server._MOST_ASKED", 1)
    async with client_of(outside(), streaming=False) as client:
        request = message(new_text_part("wait"))
        request.configuration.return_immediately = True
        (waits,) = [event async for event in client.send_message(request)]
        (refused,) = await events_of(client, new_text_part("hello"))
        await client.cancel_task(CancelTaskRequest(id=waits.task.id))
        answered = refused
        while answered.task.status.state == TaskState.TASK_STATE_FAILED:  # the cancelled question ends soon
            (answered,) = await events_of(client, new_text_part("hello"))
    assert refused.task.status.state == TaskState.TASK_STATE_FAILED
    assert "ask again later" in refused.task.status.message.parts[0].text
    assert answered.task.status.state == TaskState.TASK_STATE_COMPLETED


# -- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", f"{TOKEN} ", TOKEN[:-1], f"{TOKEN}x"])
async def test_a_stranger_reads_a_card_and_reaches_nothing_else(outside, token):
    async with outside(token) as http:
        assert (await http.get("/agents/7/.well-known/agent-card.json")).status_code == 200
        for method, path in (("POST", "/agents/7"), ("GET", "/agents"), ("GET", "/"), ("POST", "/agents/none")):
            answer = await http.request(method, path, json={})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert TOKEN not in answer.text


async def test_who_is_not_exposed_is_not_reached(outside):
    async with outside() as http:
        for agent in ("8", "9", "none", "7/x", "%20"):
            for found in (
                await http.post(f"/agents/{agent}", json={}),
                await http.get(f"/agents/{agent}/.well-known/agent-card.json"),
            ):
                assert found.status_code == 404
        assert (await http.get("/agents")).json() == {"experiment": "town", "agents": [1, 7, "a/b c"]}


async def test_two_tokens_in_one_request_are_refused(outside):
    async with outside(None) as http:
        headers = [("authorization", "Bearer wrong"), ("authorization", f"Bearer {TOKEN}")]
        assert (await http.post("/agents/7", headers=headers, json={})).status_code == 401


@pytest.mark.parametrize(
    "payload",
    [
        {"n": 2**53 + 1},
        {"deep": [{"n": -(2**60)}]},
        {"n": math.nan},
        [math.inf],
        {"n": {1: 2}},
        {"content": "x", "b": b"x"},
    ],
)
def test_a_payload_that_would_change_is_no_part(payload):
    with pytest.raises(InvalidPayload):
        parts_of(payload)


def test_a_payload_in_json_is_the_same_after_its_way_through_parts():
    payload = {"content": "x", "n": [2**53, -(2**53), 0.1, True, None, {"a": ""}]}
    assert payload_of(parts_of(payload)) == payload


def test_a_whole_number_of_a_client_that_a_float_cannot_hold_does_not_arrive_as_an_int():
    for number in (2**53 + 1, 2**60 + 1):
        arrived = payload_of([json_format.ParseDict({"data": {"n": number}}, Part())])["n"]
        assert (type(arrived), arrived) == (float, float(number))
    assert type(payload_of([json_format.ParseDict({"data": {"n": 2**53 - 1}}, Part())])["n"]) is int


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"jsonrpc":"2.0"}', b"[" * 100_000, b'"\\ud800"'])
async def test_garbage_gets_an_error_and_the_server_goes_on(outside, body):
    async with outside() as http:
        answer = await http.post("/agents/7", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in {200, 400}
        assert "error" in json.loads(answer.text)
    async with client_of(outside(), streaming=False) as client:
        (event,) = await events_of(client, new_text_part("hello"))
    assert event.task.status.state == TaskState.TASK_STATE_COMPLETED


async def test_a_large_request_is_refused(outside):
    async with outside() as http:
        assert (await http.post("/agents/7", content=b"x" * (_MOST_BYTES + 1))).status_code == 413


def test_one_id_is_not_taken_as_a_list_of_its_letters():
    with pytest.raises(ConfigError, match=r"write \['weather'\]"):
        A2AServer(None, "weather", "127.0.0.1:0", None, 5.0)


async def test_only_the_last_tasks_are_kept():
    from a2a.server.context import ServerCallContext
    from a2a.types import ListTasksRequest, Task

    store, context = _LastTasks(), ServerCallContext()
    for number in range(_MOST_TASKS + 5):
        await store.save(Task(id=str(number)), context)
    assert (await store.list(ListTasksRequest(page_size=10), context)).total_size == _MOST_TASKS
    assert await store.get("4", context) is None
