"""Calls that agents make by `me.remember`, such as to a language model: their keys, and their results as bytes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidPayload
from ray_messaging.model.call_usage import CallUsage
from ray_messaging.model.exact import decode_exactly, encode_exactly

# Where the result of a call is from. MODEL: the function was called. KEPT: an earlier attempt at the step. PARENT: the
# run from which this run was forked. STORE: the store of `Calls(store=)`. FAILED: the call has used tokens, but has no
# result. UNUSED: the call was made ahead of its step, in which the agent did not ask for it.
MODEL, KEPT, PARENT, STORE, FAILED, UNUSED = "model", "kept", "parent", "store", "failed", "unused"
NO_RESULT = msgspec.Raw(msgspec.msgpack.encode(None))  # the result of a call that has failed
_DIGEST_BYTES = 16
# These errors mean that a value cannot be encoded. ArithmeticError is among them because Decimal("sNaN") has no order.
_UNENCODABLE = (TypeError, ValueError, ArithmeticError, RecursionError, InvalidPayload)


class AskedCall(msgspec.Struct, gc=False):
    """A call through `me.remember`: the function's qualified name, and a digest of agent, function and arguments.

    Equal calls have equal digests. `by_content` is False if the arguments cannot be encoded; then the digest does not
    depend on them.
    """

    function: str
    digest: str
    by_content: bool


class KeptCall(msgspec.Struct, array_like=True, gc=False):
    """The result of a call, in the form of `encode_exactly`, and the seconds and tries that the call took in this run.

    `usage` has the tokens and the cost of the call in this run. If the call `failed`, there is no result, and only its
    usage matters. If the result is from a store, `saved` has what the call used when it was made (None: not known).
    """

    seconds: float
    tries: int
    result: msgspec.Raw
    usage: CallUsage | None = None
    failed: bool = False
    saved: CallUsage | None = None


class CallRecord(msgspec.Struct, array_like=True, gc=False):
    """An agent's call through `me.remember` in a committed step, with its result, and the tokens that it used.

    `source` says where the result came from: MODEL, KEPT, PARENT, STORE, FAILED or UNUSED.
    """

    key: str
    agent: AgentId
    function: str
    by_content: bool
    arguments: str | None
    seconds: float
    tries: int
    source: str
    result: msgspec.Raw
    usage: CallUsage | None = None
    saved: CallUsage | None = None


class AgentAtCalls(NamedTuple):
    """An agent with unfinished calls through `me.remember`.

    The agent has `calls` unfinished calls. `waiting` of them wait until a limit allows them to begin or to try again,
    and the others are in flight. The first of these calls began `seconds` ago. `hears` is how many agents wait for this
    agent before they begin the next step (None: all agents do), and `named` has some of these waiting agents.
    """

    agent: AgentId
    step: int
    calls: int
    waiting: int
    seconds: float
    hears: int | None
    named: tuple[AgentId, ...]


class CallsNow(NamedTuple):
    """The number of a group's unfinished calls through `me.remember`, and how many of them wait.

    A call waits until a limit allows it to begin, or to try again. `agents` are the agents whose unfinished calls
    began first.
    """

    calls: int
    waiting: int
    agents: Sequence[AgentAtCalls] = ()


NO_CALLS: Final = CallsNow(0, 0)


def unbound(
    function: Any,  # noqa: ANN401 - a function of the user's
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]:
    """Return the function that `functools.partial` objects wrap, and all arguments, those of the partials first."""
    while isinstance(function, partial):
        function, args, kwargs = function.func, function.args + args, function.keywords | kwargs
    return function, args, kwargs


def encloses_anew(function: Callable[..., Any]) -> bool:
    """Return whether `function` was defined in a function that is running now, and uses outer values or defaults.

    An example is the lambda in `me.remember(lambda: ask(prompt))`: the key of this call has the lambda's name, but not
    the prompt.
    """
    if not any(getattr(function, name, None) for name in ("__closure__", "__defaults__", "__kwdefaults__")):
        return False
    code: CodeType | None = getattr(function, "__code__", None)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if code in frame.f_code.co_consts:
            return True
        frame = frame.f_back
    return False


def asked(agent: AgentId, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AskedCall:
    """Return what identifies a call through `me.remember`.

    Equal calls give an equal AskedCall on all machines, in whatever order their dicts and sets were filled.
    """
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    call = agent, name, args, kwargs
    try:
        try:
            content = _encode(call)
        except (TypeError, ArithmeticError):  # for example, some key of a dict is not a str
            content = _encode(_ordered(call))
    except _UNENCODABLE:
        return AskedCall(name, _digest(_encode((agent, name))), by_content=False)
    return AskedCall(name, _digest(content), by_content=True)


def arguments_text(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments of a call through `me.remember` as JSON for people.

    A value that JSON cannot represent becomes its repr.
    """
    return json_text({"args": args, "kwargs": kwargs})


def json_text(value: object) -> str:
    """Return a value as JSON for people. A value that JSON cannot represent becomes its repr, shortened."""
    try:
        return _encode_json(value).decode()
    except _UNENCODABLE:
        return _encode_json(short_repr(value)).decode()


def json_of(result: bytes) -> tuple[str, bytes | None]:
    """Return a result as JSON, and the encoded result itself if the JSON loses something of it, otherwise None."""
    text = json_text(decode_exactly(result))
    return text, None if _means(text, result) else result


def exact_of(text: str, exact: bytes | None) -> bytes:
    """Return the encoded result from the two values that `json_of` returned."""
    return exact or encode_exactly(msgspec.json.decode(text), "a result")


def _means(text: str, result: bytes) -> bool:
    """Return whether a JSON text has exactly the same value as an encoded result (see `encode_exactly`)."""
    try:
        return encode_exactly(msgspec.json.decode(text), "a result") == result
    except ValueError:  # a number in the text is too large
        return False


def encode_calls(calls: Sequence[CallRecord]) -> bytes:
    """Encode the calls of a group in a step; return b"" if there are none."""
    return msgspec.msgpack.encode(calls) if calls else b""


decode_calls: Callable[[bytes], list[CallRecord]] = msgspec.msgpack.Decoder(list[CallRecord]).decode


def _exact(value: Any) -> Any:  # noqa: ANN401 - any value that msgpack lacks
    """Return a value in a form that msgpack can encode. The encoder calls this for a value that it does not know.

    Raises: InvalidPayload if the value has no such form.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return msgspec.Raw(encode_exactly(value, "an argument"))


def _ordered(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return a value with sorted lists in place of dicts and sets, and strs in place of long ints.

    The lists are sorted by their encoded members.
    """
    if isinstance(value, dict):
        return ["dict", sorted(_encode([_ordered(key), _ordered(part)]) for key, part in value.items())]
    if isinstance(value, set | frozenset):
        return ["set", sorted(_encode(_ordered(part)) for part in value)]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return ["int", str(value)]
    return [_ordered(part) for part in value] if isinstance(value, list | tuple) else value


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


_encode = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_exact).encode
_encode_json = msgspec.json.Encoder(enc_hook=short_repr).encode
