"""`models.Chat` with a fake server in a process of its own: what is paid, and what happens while the server fails."""

import asyncio
import pickle
from typing import Literal

import pydantic
import pytest

from benchmarks.fake_openai import served
from ray_messaging import Calls, Price, by_content, run
from ray_messaging.errors import AnswerUnfit, ConfigError, ModelFailed, ModelTimeout, StepFailed
from ray_messaging.model.call_content import content_digest_of
from ray_messaging.models import Chat, _Window

AGENTS, STEPS = 12, 3
PRICE = Price(input="0.15", cached="0.03", output="0.6")
KEY = "sk-secret"


class Plan(pydantic.BaseModel):
    place: Literal["cafe", "market", "park"]
    why: str = ""


async def citizen(me, inbox):
    chat = me.shared
    heard = " ".join(message.payload["place"] for message in inbox)
    plan = await me.remember(chat, f"You are agent {me.id}, and your friends go to: {heard}. Where do you go?")
    me.state["place"] = Plan(**plan).place
    me.send((me.id + 1) % AGENTS, {"place": me.state["place"]})


def town(chat, model=citizen, **options):
    given = {"agents": AGENTS, "groups": 2, "until": STEPS, "progress": False, "calls": Calls(cost=PRICE)}
    return run(model, shared=chat, **given | options)


def tokens(calls):
    return calls.input_tokens, calls.cached_tokens, calls.output_tokens


def paid(counts):
    return counts["prompt_tokens"], counts["cached_tokens"], counts["completion_tokens"]


def chat_of(server, **options):
    return Chat(model="small", base_url=server.base_url, api_key=KEY, **{"form": Plan} | options)


def test_a_town_pays_to_the_token_what_the_server_counts():
    with served(slots=8, output_ms=0.05) as server:
        found, counts = town(chat_of(server)), server.counts()
        again = town(chat_of(server), groups=1)
    assert counts["answered"] == found.calls.model == AGENTS * STEPS
    assert tokens(found.calls) == paid(counts)
    given, cached, output = paid(counts)
    assert found.calls.cost_parts == (given - cached) * 150_000 + cached * 30_000 + output * 600_000
    assert (found.states, found.digests) == (again.states, again.digests)


def test_refusals_a_death_and_answers_of_the_wrong_form_lose_no_call_and_pay_none_twice():
    async def deadly(me, inbox):
        if (me.id, me.step) == (7, 1):
            await asyncio.to_thread(server.die, 0.2)
        await citizen(me, inbox)

    with served() as server:
        calm = town(chat_of(server))
    with served(slots=4, output_ms=0.2, refuse=0.5, unfit=0.2) as server:
        found, counts = town(chat_of(server, corrections=9), deadly), server.counts()
    assert found.states.keys() == calm.states.keys()
    assert found.steps == STEPS
    assert found.calls.model == AGENTS * STEPS == counts["answered"] - counts["unfit"]
    assert tokens(found.calls) == paid(counts)
    assert counts["deaths"] == 1
    assert counts["refused"] > AGENTS
    assert counts["unfit"] > 0


async def answer(chat, prompt="Where do you go?"):
    return await chat(prompt)


def test_an_answer_that_comes_too_late_is_asked_for_again_and_paid_once():
    with served(output_ms=20, median_tokens=40, sigma=0) as server:
        assert asyncio.run(answer(chat_of(server, timeout=0.5))).keys() == {"place", "why"}
        assert server.counts()["answered"] == 1
        assert server.counts()["repeated"] >= 1


def test_a_server_that_never_answers_in_time_is_a_named_error_of_the_agent():
    with served(output_ms=10_000) as server:
        with pytest.raises(ModelTimeout, match=r"did not answer within timeout=0.05 s \(model 'small', tries: 1\)"):
            asyncio.run(answer(chat_of(server, timeout=0.05, patience=0)))
        with pytest.raises(StepFailed, match=r"agent 0 .*did not answer within") as raised:
            town(chat_of(server, timeout=0.05, patience=0), agents=1)
        assert raised.value.agent == 0


def test_answers_that_never_fit_are_a_named_error_and_what_they_used_is_counted():
    used = []

    async def counted(me, inbox):
        try:
            await me.remember(me.shared, "Where do you go?")
        except AnswerUnfit as error:
            used.append(error)

    with served(unfit=1) as server:
        found = town(chat_of(server, corrections=2), counted, agents=1, until=1)
        assert tokens(found.calls) == paid(server.counts())
        assert server.counts()["answered"] == 3
    [error] = used
    assert str(error).startswith(f"model 'small' at {server.base_url} gave no usable answer in 3 tries: Invalid JSON")
    assert (error.model, error.tries, error.status, error.answer) == (
        "small", 3, 200, "I would rather not say { that",
    )  # fmt: skip
    assert found.calls.failed == 1


@pytest.mark.parametrize(
    ("path", "text"), [("/v1", "cannot be reached"), ("/v2", "answered 404: .*there is no /v2/chat/completions")]
)
def test_a_server_that_is_gone_or_another_one_is_named_without_the_key(path, text):
    with served() as server:
        url = server.base_url.replace("/v1", path)
        if path == "/v1":
            server.die(3600)
        chat = Chat(model="small", base_url=url, api_key=KEY, patience=0)
        with pytest.raises(ModelFailed, match=text) as raised:
            asyncio.run(answer(chat))
    assert KEY not in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).tries == 1


def test_an_answer_is_told_by_server_model_and_settings_and_never_by_the_key():
    def told(**options):
        given = {"model": "small", "base_url": "http://me:pass@host/v1", "api_key": KEY} | options
        return content_digest_of(Chat(**given), ("Where?",), {})

    assert told() == told() == told(api_key="other", base_url="http://host/v1", timeout=3, concurrency=4)
    others = [
        {"model": "large"}, {"base_url": "http://host/v2"}, {"form": Plan}, {"system": "Be brief."}, {"seed": 1},
        {"options": {"temperature": 0}},
    ]  # fmt: skip
    assert len({told(), *(told(**other) for other in others)}) == len(others) + 1
    chat = Chat(model="small", base_url="http://me:pass@host/v1", api_key=KEY)
    assert repr(chat) == "Chat(model='small', base_url='http://host/v1')"
    assert KEY not in repr(chat.call_content())
    assert repr(pickle.loads(pickle.dumps(chat))) == repr(chat)


@pytest.mark.parametrize("inside", [False, True])
def test_with_a_store_equal_questions_are_asked_once(tmp_path, inside):
    async def asks(me, inbox):
        async def through(prompt):
            return await chat(prompt)

        sampled = by_content(through if inside else chat, sample=2)
        me.state["said"] = await me.remember(sampled, f"topic {me.id % 3}")

    with served() as server:
        chat = chat_of(server, form=None)
        results = [town(chat, asks, calls=Calls(cost=PRICE, store=tmp_path), groups=groups) for groups in (2, 1)]
        counts = server.counts()
    assert [(found.calls.model, found.calls.store) for found in results] == [(6, 3 * AGENTS - 6), (0, 3 * AGENTS)]
    assert counts["answered"] == 6
    assert tokens(results[0].calls) == paid(counts)


def test_a_budget_of_money_is_exceeded_by_no_more_than_was_under_way(tmp_path):
    with served(output_ms=0.1) as server:
        limits = {"cost": Price(input=0, output=1000), "store": tmp_path}  # a thousandth for each token of an answer
        first = town(chat_of(server), calls=Calls(budget="1 USD", concurrency=4, **limits))
        spent = server.counts()["completion_tokens"]
        assert first.calls.spent
        assert first.calls.cost * 1000 == spent
        longest = 500  # the longest of so few answers
        assert 1000 <= spent <= 1000 + 4 * longest
        rest, none = (town(chat_of(server), calls=Calls(budget="100 USD", concurrency=4, **limits)) for _ in range(2))
        counts = server.counts()
    assert (rest.steps, rest.stopped, none.calls.model) == (STEPS, False, 0)
    assert counts["answered"] == first.calls.model + rest.calls.model
    assert (first.calls.cost + rest.calls.cost) * 1000 == counts["completion_tokens"]
    assert rest.calls.store >= first.calls.model


def test_a_form_may_have_fields_with_the_names_of_keywords():
    class Inner(pydantic.BaseModel):
        properties: str
        default: int = 3

    class Odd(pydantic.BaseModel):
        default: str
        inner: Inner
        type: str = "object"

    schema = Chat(model="small", base_url="http://x/v1", form=Odd)._request["response_format"]["json_schema"]["schema"]
    inner = schema["$defs"]["Inner"]
    assert (schema["required"], inner["required"]) == (["default", "inner", "type"], ["properties", "default"])
    assert [*schema["properties"], *inner["properties"]] == schema["required"] + inner["required"]
    assert not any("default" in of for each in (schema, inner) for of in each["properties"].values())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"model": ""}, "must be the name of a model"),
        ({"form": dict}, "derives from pydantic.BaseModel"),
        ({"base_url": "host/v1"}, "write http"),
        ({"api_key": "a b"}, "must be a str of ASCII characters without blanks"),
        ({"timeout": 0}, "timeout=0 must be a number of seconds above 0"),
        ({"patience": "2"}, "patience='2' must be a number of seconds, at least 0"),
        ({"corrections": None}, "corrections=None must be a whole number, at least 0"),
        ({"concurrency": 0}, "concurrency=0 must be a whole number, at least 1"),
    ],
)
def test_settings_that_cannot_work_are_named(given, text):
    with pytest.raises(ConfigError, match=text):
        Chat(**{"model": "small"} | given)


async def test_without_a_key_openai_is_not_asked(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="there is no API key"):
        await answer(Chat(model="small"))


client = Chat._client


async def fill(window):
    """Let as many requests begin as may, and return their places."""
    places = []
    while window.under_way < int(window.size):
        places.append(await window.enter())
    return places


async def demand(window, requests):
    """Let requests be answered, of which others always wait."""

    async def ask():
        window.leave(await window.enter(), answered=True)

    places = await fill(window)
    waiting = [asyncio.create_task(ask()) for _ in range(requests)]
    await asyncio.sleep(0)
    for place in places:
        window.leave(place, answered=True)
    await asyncio.gather(*waiting)


async def test_calls_that_begin_at_the_same_moment_share_one_client(monkeypatch):
    clients = []
    monkeypatch.setattr(Chat, "_client", lambda chat: clients.append(client(chat)) or clients[-1])
    with served() as server:
        chat = chat_of(server, form=None)
        assert len(await asyncio.gather(*(chat(f"{number}") for number in range(20)))) == 20
    assert len(clients) == 1


PERSONAS = [f"You are person {number} of the town. " + "You like the rain. " * 30 for number in range(6)]


@pytest.mark.parametrize("held_by", ["window", "gate"])
def test_calls_that_wait_are_sent_so_that_the_server_finds_their_prefixes_in_its_cache(held_by):
    async def person(me, inbox):
        me.state["said"] = await me.remember(me.shared, f"{PERSONAS[me.id % 6]} Agent {me.id} in {me.step}?")

    limits = {"window": Calls(), "gate": Calls(concurrency=1)}[held_by]
    with served(slots=1, output_ms=0.01, cache_tokens=300) as server:  # the cache has room for two of the six prefixes
        chat = chat_of(server, form=None, concurrency=1 if held_by == "window" else 100)
        town(chat, person, agents=60, until=1, groups=1, calls=limits)
        counts = server.counts()
    assert counts["answered"] == 60
    # Only the prefixes of the very first call, and of the first call of each person, are not in the cache. A prefix has
    # 112 tokens in whole blocks. In the order of the agents, no call would find its prefix.
    assert counts["cached_tokens"] >= (60 - 6 - 1) * 112


async def test_the_calls_of_an_earlier_step_begin_before_those_that_run_ahead():
    window, began = _Window(1), []
    place = await window.enter()

    async def ask(step, text):
        at = await window.enter(step, text)
        began.append((step, text))
        window.leave(at, answered=None)

    waiting = [asyncio.create_task(ask(*call)) for call in [(2, "a"), (1, "z"), (1, "b"), (2, "c"), (1, "b")]]
    await asyncio.sleep(0)
    window.leave(place, answered=None)
    await asyncio.gather(*waiting)
    assert began == [(1, "b"), (1, "b"), (1, "z"), (2, "a"), (2, "c")]


async def test_a_window_doubles_is_halved_once_in_a_round_and_then_grows_by_one():
    window = _Window(100)
    await demand(window, 100)
    size = window.size
    assert size > 40
    for place in await fill(window):
        window.leave(place, answered=False)
    assert window.size == size / 2
    await demand(window, int(window.size))
    assert size / 2 < window.size <= size / 2 + 2
    await demand(window, 5000)
    assert size < window.size <= 100


async def test_a_window_that_is_full_lets_requests_in_one_by_one_and_one_that_gave_up_takes_no_place():
    window = _Window(2)
    places = await fill(window)
    waiting = [asyncio.create_task(window.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    window.leave(places[0], answered=None)
    waiting[1].cancel()  # it may begin just now
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await waiting[2]
    assert window.under_way == 2


async def test_a_pause_holds_all_requests_back():
    window = _Window(8)
    window.pause(0.05)
    waiting = [asyncio.create_task(window.enter()) for _ in range(8)]
    await asyncio.sleep(0)
    assert window.under_way == 0
    window.pause(0.1)
    await asyncio.gather(*waiting)
    assert window.under_way == 8
