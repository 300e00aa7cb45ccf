"""Agents on Ray for clients outside, and outside agents in an experiment, by A2A."""

import asyncio
import threading
import uuid
from contextlib import suppress
from functools import partial
from threading import Thread

import pytest

pytest.importorskip("a2a.client", reason="a2a-sdk is not installed")

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import get_text_parts, new_text_part
from a2a.types import Message, Role, SendMessageRequest
from support.outside_agents import Outside, application, served

from ray_messaging import EventLog, Messaging, MessagingError, Steps, rules
from ray_messaging.errors import AnswerFailed, ConfigError

pytestmark = [pytest.mark.long]


async def asked(url, token, text):
    """Ask an agent by the SDK's client; return the text of the answer."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        request = SendMessageRequest(message=Message(message_id="m", role=Role.ROLE_USER, parts=[new_text_part(text)]))
        (event,) = [event async for event in client.send_message(request)]
    parts = event.task.artifacts[0].parts if event.task.artifacts else event.task.status.message.parts
    return get_text_parts(parts)[0]


async def test_both_ways_in_one_experiment(ray_cluster, tmp_path):
    """An outside agent of the experiment is an exposed agent of the same experiment."""
    name = f"a2a-{uuid.uuid4().hex[:8]}"
    with Messaging.start(name, rules=[rules.Pattern(["casino"])], log_dir=tmp_path / "log") as messaging:
        group = messaging.create_group("east", [7])

        async def think(message):
            return {"content": f"7 heard {message.payload['content']}"}

        async def serve():
            with suppress(MessagingError):  # the experiment ends
                await group.aio.serve(think)

        serving = Thread(target=asyncio.run, args=(serve(),))
        serving.start()
        with messaging.expose([7], a2a="127.0.0.1:0") as server:
            assert server.token not in repr(server)
            assert await asked(server.url_of(7), server.token, "hello") == "7 heard hello"
            assert "pattern" in await asked(server.url_of(7), server.token, "casino")
            async with httpx.AsyncClient() as stranger:
                assert (await stranger.post(server.url_of(7), json={})).status_code == 401
            with pytest.raises(ConfigError, match="cannot be taken"):
                messaging.expose([7], a2a=server.url.removeprefix("http://"))
            with messaging.remote_agent("weather", server.url_of(7), token=server.token):
                answer = messaging.ask("weather", {"content": "rain?"})
                assert answer.payload == {"content": "7 heard rain?"}
            with (
                messaging.remote_agent("weather", server.url_of(7), token="wrong", wait_s=10),
                pytest.raises(AnswerFailed, match="401"),
            ):
                messaging.ask("weather", {"content": "rain?"})
        # What the experiment's own process has opened ends with the experiment.
        left = messaging.expose([7], a2a="127.0.0.1:0")
        remote = messaging.remote_agent("weather", left.url_of(7), token=left.token)
        assert messaging.ask("weather", {"content": "rain?"}).payload == {"content": "7 heard rain?"}
        said = messaging.log.query(agent="weather", text=True).to_pylist()
        assert [row["fate"] for row in said] == ["delivered"] * len(said)
        assert len(said) >= 3
    serving.join()
    async with httpx.AsyncClient() as late:
        with pytest.raises(httpx.ConnectError):
            await late.get(f"{left.url}/agents")
    assert not {"ray_messaging user", "ray_messaging remote agent"} & {thread.name for thread in threading.enumerate()}
    for handle in (left, remote):
        handle.close()  # a second call does nothing


def asker(me, inbox):
    for message in inbox:
        me.state.setdefault("heard", []).append((me.step, message.payload))
    if me.step in {0, 3}:
        me.ask("weather", {"content": f"rain in {me.step}?"})


def test_a_fork_replays_what_an_outside_agent_has_said(by_value, tmp_path):
    name = f"a2a-{uuid.uuid4().hex[:8]}"
    outside = Outside(lambda text: [f"{text} yes, number {len(outside.heard)}"])
    models, agents = {"person": asker}, {"person": [1, 2], "weather": ["weather"]}
    with served(partial(application, outside)) as url:
        with Messaging.start(name, steps=Steps(seed=7, checkpoint=1), log_dir=tmp_path / name) as messaging:
            weather = messaging.remote_agent("weather", url)
            first = messaging.run(models | {"weather": weather}, agents=agents, until=6, progress=False)
            calls = messaging.log.calls().to_pylist()
        assert sorted(outside.heard) == ["rain in 0?"] * 2 + ["rain in 3?"] * 2
        assert [call["agent"] for call in calls] == ["weather"] * 4
        with Messaging.fork(tmp_path / name, f"{name}-2", at_step=5, log_dir=tmp_path / "fork") as messaging:
            weather = messaging.remote_agent("weather", url)
            again = messaging.run(models | {"weather": weather}, agents=agents, until=6, progress=False)
            assert messaging.log.diff(EventLog.open(tmp_path / name)) is None
    assert len(outside.heard) == 4
    assert again.states == first.states
