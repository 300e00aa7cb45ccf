"""AgentScope's Msg: fields, text form, dicts, and refused values."""

import copy
import enum
import json
import pickle
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from support.any_values import TEXT, json_values

from ray_messaging import MessagingError, Msg
from ray_messaging.compat.msg import msg_of
from ray_messaging.errors import InvalidMsg, InvalidPayload, PayloadTooLarge
from ray_messaging.model.columns import encode_payload

# Written by AgentScope 0.1.0 itself: python -m benchmarks.compat.agentscope_msg --write
GOLDEN = json.loads(Path(__file__).with_name("agentscope_msgs.json").read_text())
FIELDS = ("id", "name", "content", "role", "url", "metadata", "timestamp")
KEYS = {"__module__", "__name__", *FIELDS}
LIMIT = 10**6
TIMESTAMP = "%Y-%m-%d %H:%M:%S"

MSG = st.builds(
    Msg,
    name=TEXT,
    content=json_values,
    role=st.sampled_from(["system", "user", "assistant"]),
    url=st.one_of(st.none(), TEXT, st.lists(TEXT, max_size=3)),
    metadata=st.one_of(st.none(), TEXT, st.dictionaries(TEXT, json_values, max_size=3)),
)


def sent(msg):
    """Return the payload as a receiver gets it."""
    return msg_of(msgspec.json.decode(encode_payload(msg, LIMIT)))


@given(MSG)
def test_a_msg_comes_back_from_its_dict_and_from_the_wire(msg):
    written = msg.to_dict()
    assert written.keys() == KEYS
    assert Msg.from_dict(written) == msg
    assert written.keys() == KEYS  # AgentScope takes two of them out
    assert sent(msg) == msg
    assert Msg.from_dict(json.loads(json.dumps(written))).to_dict() == written


@given(MSG)
def test_a_msg_is_copied_by_value(msg):
    copies = [
        copy.copy(msg),
        copy.deepcopy(msg),
        *(pickle.loads(pickle.dumps(msg, version)) for version in range(2, 6)),
    ]
    for other in copies:
        assert other == msg
        assert hash(other) == hash(msg)
        assert repr(other) == repr(msg)


@pytest.mark.parametrize("golden", GOLDEN, ids=[golden["dict"]["name"] for golden in GOLDEN])
def test_dicts_written_by_agentscope_are_read(golden):
    msg = Msg.from_dict(golden["dict"])
    assert msg.to_dict() == golden["dict"]
    assert msg.formatted_str() == golden["plain"]
    assert msg.formatted_str(colored=True) == golden["colored"]
    assert sent(msg) == msg
    ours = Msg(**golden["args"])
    same = {"id": msg.id, "timestamp": msg.timestamp}
    assert ours.to_dict() | same == golden["dict"]


def test_a_new_msg_has_its_fields():
    before = time.strftime(TIMESTAMP)
    msg = Msg("A", "B", "assistant")
    assert (msg.name, msg.content, msg.role, msg.url, msg.metadata) == ("A", "B", "assistant", None, None)
    assert re.fullmatch("[0-9a-f]{32}", msg.id)
    assert msg.id != Msg("A", "B", "assistant").id
    assert time.strptime(msg.timestamp, TIMESTAMP)
    assert before <= msg.timestamp <= time.strftime(TIMESTAMP)


def test_every_field_can_be_set():
    msg = Msg("A", "B", "assistant")
    new = {"id": "1", "name": "C", "content": [1], "role": "user", "url": ["u"], "metadata": {"a": 1}, "timestamp": "t"}
    for field, value in new.items():
        setattr(msg, field, value)
    assert {field: getattr(msg, field) for field in FIELDS} == new
    assert {key: value for key, value in msg.to_dict().items() if key in FIELDS} == new
    msg.seen = True  # AgentScope lets its users do so
    assert pickle.loads(pickle.dumps(msg)).seen


@pytest.mark.parametrize(
    ("url", "lines"),
    [(None, []), ("u", ["u"]), (["u", "v"], ["u", "v"]), ([], []), ("", [""])],
)
def test_urls_follow_the_content(url, lines):
    msg = Msg("A", "B", "assistant", url)
    assert msg.formatted_str() == "\n".join(f"A: {line}" for line in ["B", *lines])
    assert msg.formatted_str(True) == "\n".join(f"\x1b[95mA\x1b[0m: {line}" for line in ["B", *lines])


def test_echo_prints(capsys):
    Msg("A", "B", "assistant", echo=True)
    assert capsys.readouterr().out == "\x1b[95mA\x1b[0m: B\n"
    Msg("A", "B", "assistant")
    assert capsys.readouterr() == ("", "")


def test_unused_keywords_are_warned_of():
    with pytest.warns(UserWarning, match=r"does not use host, timestamp") as warned:
        msg = Msg("A", "B", "user", timestamp="now", host="h")
    assert warned[0].filename == __file__
    assert msg.timestamp != "now"


def test_fields_as_items_are_deprecated():
    msg = Msg("A", "B", "user")
    with pytest.warns(DeprecationWarning, match=r"write msg\.content"):
        assert msg["content"] == "B"
    with pytest.warns(DeprecationWarning, match=r"msg\.nothing"), pytest.raises(AttributeError, match="nothing"):
        msg["nothing"]


class Kind(enum.StrEnum):
    USER = "user"


def test_a_role_is_a_plain_str():
    msg = Msg("A", "B", Kind.USER)
    assert type(msg.role) is str
    assert sent(msg) == msg


@pytest.mark.parametrize("role", ["admin", "User", "user ", "", None, 1, ["user"], {"user": 1}])
def test_a_role_is_one_of_three(role):
    msg = Msg("A", "B", "user")

    def assign():
        msg.role = role

    for refused in (lambda: Msg("A", "B", role), assign, lambda: Msg.from_dict(msg.to_dict() | {"role": role})):
        with pytest.raises(InvalidMsg, match=r"'system', 'user', 'assistant'") as caught:
            refused()
        assert repr(role) in str(caught.value)
        assert caught.value.value == role
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, MessagingError)
    assert msg.role == "user"


@pytest.mark.parametrize("gone", sorted(KEYS))
def test_a_missing_key_is_named(gone):
    written = Msg("A", "B", "user").to_dict()
    del written[gone]
    with pytest.raises(AssertionError, match=f"lacks '{gone}'") as caught:
        Msg.from_dict(written)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, InvalidMsg)
    assert (error.missing, error.extra, error.value) == ((gone,), (), written)


def test_wrong_keys_are_named_and_counted():
    written = Msg("A", "B", "user").to_dict() | {"x": 1, 5: 2}
    del written["url"]
    with pytest.raises(InvalidMsg, match="lacks 'url' and has the unknown keys 'x', 5"):
        Msg.from_dict(written)
    with pytest.raises(InvalidMsg, match="'k09', 5 more: "):
        Msg.from_dict(Msg("A", "B", "user").to_dict() | {f"k{number:02}": 1 for number in range(15)})


@pytest.mark.parametrize("value", [None, 5, "text", [], [("id", 1)], Msg("A", "B", "user")])
def test_a_value_that_is_not_a_dict_is_refused(value):
    with pytest.raises(InvalidMsg, match=r"from_dict got .*, which is not a dict: pass the result of to_dict\(\)"):
        Msg.from_dict(value)


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "Msg"), ("this", "Msg"), ("agentscope.message.msg", "system"), ("agentscope.message.msg.x", "Msg"),
     ("", ""), (None, None), (["agentscope.message.msg"], "Msg"), ({}, {})],
)  # fmt: skip
def test_a_dict_of_another_class_is_refused_and_nothing_imported(module, name):
    written = Msg("A", "B", "user").to_dict() | {"__module__": module, "__name__": name}
    with pytest.raises(InvalidMsg, match="read the dict with the class that wrote it") as caught:
        Msg.from_dict(written)
    assert caught.value.value == (module, name)
    assert "this" not in sys.modules
    assert msg_of(written) is None


@pytest.mark.parametrize("module", ["agentscope.message", "ray_messaging", Msg.__module__])
def test_names_by_which_a_msg_can_be_imported_are_taken(module):
    msg = Msg("A", "B", "user")
    assert msg_of(msg.to_dict() | {"__module__": module}) == msg


class Thought(Msg):
    """A user's own kind."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.secret = True


def test_a_subclass_reads_its_own_dicts_only():
    thought = Thought("A", "B", "user", metadata="x")
    written = thought.to_dict()
    assert (written["__module__"], written["__name__"]) == (Thought.__module__, "Thought")
    back = Thought.from_dict(written)
    assert back == thought
    assert back.secret
    plain = Msg.from_dict(written | {"__module__": "agentscope.message.msg", "__name__": "Msg"})
    assert plain != thought
    assert thought != plain
    for reader, dictionary in ((Msg, written), (Thought, plain.to_dict())):
        with pytest.raises(InvalidMsg, match="the class that wrote it"):
            reader.from_dict(dictionary)
    with pytest.raises(InvalidPayload, match=r"Thought\.from_dict\(message\.payload\)"):
        encode_payload(thought, LIMIT)
    assert Thought.from_dict(msgspec.json.decode(encode_payload(written, LIMIT))) == thought


def test_equality_and_hash():
    msg = Msg("A", "B", "user")
    same = Msg.from_dict(msg.to_dict())
    assert {msg, same} == {msg}
    same.content = "C"
    assert same != msg
    assert hash(same) == hash(msg)  # an edited one is still found under its id
    assert msg != "A: B"
    assert msg != msg.to_dict()
    for field in FIELDS:
        other = copy.copy(msg)
        setattr(other, field, "system")
        assert other != msg, field


def test_repr_shows_the_fields():
    msg = Msg("A", {"b": 1}, "user", url=["u"])
    assert repr(msg) == (
        f"Msg(name='A', content={{'b': 1}}, role='user', url=['u'], metadata=None, id={msg.id!r}, "
        f"timestamp={msg.timestamp!r})"
    )


CYCLE = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize("field", ["content", "metadata", "name", "url", "id"])
@pytest.mark.parametrize(
    "value",
    [b"bytes", {1, 2}, object(), datetime(2026, 1, 1, tzinfo=UTC), float("nan"), [float("inf")], {"a": [1j]},
     {("a", 1): 2}, CYCLE],
    ids=["bytes", "set", "object", "time", "nan", "infinity", "complex", "tuple key", "cycle"],
)  # fmt: skip
def test_values_that_json_cannot_hold_are_refused(field, value):
    msg = Msg("A", "B", "user")
    setattr(msg, field, value)
    with pytest.raises(InvalidPayload, match=f"the {field} of this Msg cannot become JSON"):
        encode_payload(msg, LIMIT)


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"]])
def test_values_that_our_json_cannot_hold_are_refused(value):
    with pytest.raises(InvalidPayload, match="cannot become JSON"):
        encode_payload(Msg("A", value, "user"), LIMIT)


def test_a_msg_keeps_to_the_limit():
    msg = Msg("A", "B" * 100, "user")
    size = len(encode_payload(msg, LIMIT))
    assert len(encode_payload(msg, size)) == size
    with pytest.raises(PayloadTooLarge):
        encode_payload(msg, size - 1)


class Turn(BaseModel):
    said: Msg
    heard: list[Msg] = []


@given(MSG, st.lists(MSG, max_size=2))
def test_a_model_holds_msgs(said, heard):
    turn = Turn(said=said, heard=heard)
    assert turn.said is said
    assert turn.model_dump() == {"said": said.to_dict(), "heard": [msg.to_dict() for msg in heard]}
    assert Turn.model_validate(turn.model_dump()) == turn
    assert Turn.model_validate_json(turn.model_dump_json()) == turn


def test_the_json_schema_names_the_fields():
    for mode in ("validation", "serialization"):
        schema = Turn.model_json_schema(mode=mode)["properties"]["said"]
        assert set(schema["required"]) == set(schema["properties"]) == KEYS
        assert schema["properties"]["role"]["enum"] == ["system", "user", "assistant"]
        assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"role": "admin"}, "role", "'system', 'user' or 'assistant'"),
        ({"extra": 1}, "extra", "Extra inputs"),
        ({"id": 5}, "id", "valid string"),
        ({"url": 5}, "url", "valid string"),
        ({"metadata": 5}, "metadata", "Input should be"),
        ({"__module__": "os"}, "said", "read the dict with the class that wrote it"),
    ],
)
def test_a_model_refuses_a_bad_dict(change, where, what):
    written = Msg("A", "B", "user").to_dict() | change
    for refused in (lambda: Turn(said=written), lambda: Turn.model_validate_json(json.dumps({"said": written}))):
        with pytest.raises(ValidationError) as caught:
            refused()
        assert any(where in error["loc"] and what in error["msg"] for error in caught.value.errors())


@pytest.mark.parametrize("content", [float("nan"), np.zeros(3), {"a": np.zeros(3)}], ids=["nan", "array", "arrays"])
def test_a_msg_with_any_content_is_found_in_a_list(content):
    msg, other = Msg("A", content, "user"), Msg("A", content, "user")
    assert msg == copy.copy(msg)
    assert msg != other
    assert [other, msg].index(msg) == 1


def test_a_subclass_has_its_own_setters():
    class Shouted(Msg):
        @property
        def content(self):
            return super().content

        @content.setter
        def content(self, value):
            self._content = value.upper()

        @property
        def role(self):
            return self._role

        @role.setter
        def role(self, value):
            self._role = value

    msg = Shouted("A", "hi", "judge")
    assert (msg.content, msg.role) == ("HI", "judge")
    again = Shouted.from_dict(msg.to_dict())
    assert (again, again.id, again.timestamp) == (msg, msg.id, msg.timestamp)
