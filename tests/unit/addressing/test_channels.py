"""Channels are built and taken apart alike."""

import fnmatch
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.addressing.channels import (
    Address,
    agent_channel,
    answer_mailbox,
    build_channel,
    check_id,
    check_name,
    id_tuple,
    is_internal,
    parse_channel,
    survey_mailbox,
)
from ray_messaging.addressing.patterns import glob_pattern, is_glob
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.errors import InvalidAddress

INT64 = st.integers(-(2**63), 2**63 - 1)
FIT = st.characters(exclude_categories=["Cs", "Cc"])
ID = st.text(FIT, min_size=1, max_size=50).filter(lambda text: len(text.encode()) <= 200)
NAME = ID.filter(lambda text: not set(text) & set(":*?[]\\"))
LONG = st.sampled_from(["x" * 200, "é" * 100])
EXPERIMENT = st.from_regex(r"[A-Za-z0-9._-]{1,200}", fullmatch=True)


@given(EXPERIMENT, st.one_of(INT64, ID, LONG, st.just(":" * 200)), st.one_of(NAME, LONG))
def test_an_agents_channel(exp_id, agent_id, subtopic):
    channel = agent_channel(exp_id, agent_id, subtopic)
    assert parse_channel(exp_id, channel) == Address(check_id(agent_id), subtopic)
    assert build_channel(exp_id, *parse_channel(exp_id, channel)) == channel
    assert not is_glob(channel)


@given(EXPERIMENT, NAME)
def test_a_plain_channel(exp_id, name):
    for channel in (name, f"exps:{exp_id}:user-payback", f"exps:{exp_id}:{name}"):
        if channel != f"exps:{exp_id}:agents":
            address = parse_channel(exp_id, channel)
            assert address.agent_id is None
            assert build_channel(exp_id, *address) == channel


@given(EXPERIMENT, st.text(max_size=40))
def test_any_text_is_a_channel_or_refused(exp_id, text):
    for channel in (text, f"exps:{exp_id}:{text}", f"exps:{exp_id}:agents:{text}", f"exps:{text}"):
        try:
            address = parse_channel(exp_id, channel)
        except InvalidAddress:
            pass
        else:
            assert parse_channel(exp_id, build_channel(exp_id, *address)) == address
            channel.encode()


@given(INT64)
def test_a_str_that_spells_an_integer(number):
    assert check_id(str(number)) == number
    assert check_id(f"0{number}" if number >= 0 else f"-0{-number}") == (
        f"0{number}" if number >= 0 else f"-0{-number}"
    )


@given(st.text(max_size=30))
def test_ids_are_fit_for_a_channel_or_refused(text):
    try:
        found = check_id(text)
    except InvalidAddress:
        return
    assert str(found) == text
    assert check_id(found) == found
    assert parse_channel("e", agent_channel("e", text, "chat")) == (found, "chat")


@pytest.mark.parametrize("text", ["9" * 20, str(2**63), str(-(2**63) - 1)])
def test_a_number_beyond_64_bits_stays_a_str(text):
    assert check_id(text) == text


@given(EXPERIMENT)
def test_names(name):
    assert check_name("name", name) == name
    keys = Keys(name)
    for key in (keys.meta, keys.stream("m"), keys.state("m"), keys.lease("m"), keys.sender("m"), keys.own):
        assert key.startswith(f"rm:{{{name}}}:")


@pytest.mark.parametrize("check", [lambda text: check_name("group", text), check_id])
def test_an_error_names_only_the_beginning_of_a_long_text(check):
    with pytest.raises(InvalidAddress, match=r"xxx\.\.\. of 100,002 characters cannot be used") as caught:
        check("x" * 100_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("agent_id", "form"),
    [("did:web:x", "did%3Aweb%3Ax"), ("@ann:example.org", "@ann%3Aexample.org"), ("team/1:2", "team/1%3A2"),
     (r"[a*?\]", "%5Ba%2A%3F%5C%5D"), ("50%", "50%"), ("a%2F%3a%25", "a%2F%3a%25"), ("a%3Ab", "a%253Ab"),
     ("a%253Ab", "a%25253Ab")],
)  # fmt: skip
def test_an_ids_form_in_channels(agent_id, form):
    assert agent_channel("e", agent_id, "chat") == f"exps:e:agents:{form}:chat"


@given(st.text(st.sampled_from("%23A5CBDF:*?[]\\/x"), min_size=1, max_size=30))
def test_ids_and_their_forms_correspond_one_to_one(text):
    assert parse_channel("e", agent_channel("e", text, "chat")).agent_id == check_id(text)
    form = text.translate(dict.fromkeys(map(ord, ":*?[]\\"), "%"))  # any text without these is the form of one id
    assert agent_channel("e", parse_channel("e", f"exps:e:agents:{form}:chat").agent_id, "chat").split(":")[3] == form


@pytest.mark.parametrize("agent_id", ["é" * 101, "x" * 201, "a\n", "\x7f", "\ud800"])
def test_an_id_that_is_refused_is_to_be_a_number(agent_id):
    with pytest.raises(
        InvalidAddress,
        match=r"cannot be used: .*; or give these agents numbers as ids, and keep a table of their names$",
    ):
        check_id(agent_id)


@pytest.mark.parametrize("number", [2**63, -(10**5000)], ids=["by one", "by far"])
def test_an_id_that_is_too_large_is_refused(number):
    with pytest.raises(InvalidAddress, match=r"agent id .* does not fit 64 bits"):
        check_id(number)


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_simple_patterns_are_those_of_fnmatch(glob, text):
    assert bool(glob_pattern(glob).fullmatch(text.encode())) == bool(re.match(fnmatch.translate(glob), text))


@given(st.text(max_size=12), st.text(max_size=12))
def test_any_text_is_a_pattern(glob, text):
    try:
        glob.encode(), text.encode()
    except UnicodeEncodeError:
        return
    glob_pattern(glob).fullmatch(text.encode())
    assert glob_pattern("*").fullmatch(text.encode())


def test_mailboxes_that_are_none_of_a_users_messagers():
    assert all(map(is_internal, [answer_mailbox("west"), survey_mailbox("moods"), f"anon-{0:016x}"]))
    assert not any(map(is_internal, ["west", "answers", "moods.survey", "anon-town", "anonymous"]))


TUPLE = st.recursive(
    st.lists(st.one_of(INT64, st.text(FIT, max_size=8)), min_size=1, max_size=3).map(tuple),
    lambda inner: st.lists(st.one_of(INT64, inner), min_size=1, max_size=2).map(tuple),
    max_leaves=3,
).filter(lambda parts: len(repr(parts)) < 90)


@given(TUPLE, TUPLE)
def test_a_tuple_is_a_text_that_leads_back(parts, others):
    text = check_id(parts)
    assert isinstance(text, str)
    assert id_tuple(text) == parts
    assert check_id(text) == text
    assert (check_id(others) == text) == (others == parts)
    assert parse_channel("exp", agent_channel("exp", parts, "chat")).agent_id == text


def test_tuples_are_written_as_python_writes_them():
    assert [*map(check_id, [(3, 4), (np.int64(-3),), ((0, 1), "a"), ("é'", 'b"')])] == [
        *("(3, 4)", "(-3,)", '((0, 1), "a")', '("é\'", "b\\"")'),
    ]


@pytest.mark.parametrize(
    "wrong", [(), (0.5, 1), (True, 1), (None,), (1, ()), (1, [2]), ("\ud800",), ("a" * 200,), (b"a",)]
)
def test_a_tuple_that_is_no_id_is_refused(wrong):
    with pytest.raises(InvalidAddress, match="agent id"):
        check_id(wrong)


@pytest.mark.parametrize(
    "text", ["ann", "(3,4)", "(3, 4", "(3, 4.0)", "()", "3", "[3, 4]", "('a',)", "(1, __import__('os'))"]
)
def test_a_text_that_is_no_tuple_is_refused(text):
    with pytest.raises(InvalidAddress, match="is not the text of a tuple"):
        id_tuple(text)
