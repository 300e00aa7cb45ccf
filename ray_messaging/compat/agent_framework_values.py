"""Values of agent-framework's workflows as JSON, and back, without pickle: a value names its type, and runs no code."""

import base64
import builtins
import dataclasses
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from agent_framework import Content, WorkflowEvent
from agent_framework._serialization import SerializationMixin

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidPayload

_TAG = "$"  # this key marks a JSON object that stands for a value of another type
_INT64 = 1 << 63
UNCHANGED = frozenset((str, bool, type(None)))  # JSON can represent values of these types as they are
# Attributes that the framework does not serialize.
_RUNTIME_ONLY = frozenset(("raw_representation", "_raw_representation"))
_ACTS = (
    "run",
    "get_response",
    "invoke",
    "execute",
)  # classes of the framework with one of these methods do more than hold data
_ABSENT: Any = object()
_BUILTINS = vars(builtins) | {"NoneType": type(None)}

# For each built-in type: its tag, the function that makes a value plain JSON, and the function that reads it back.
_PLAIN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (
        "bytes",
        lambda value: base64.b64encode(value).decode(),
        lambda told: base64.b64decode(told, validate=True),
    ),
    complex: ("complex", lambda value: [value.real, value.imag], lambda told: complex(*told)),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda told: timedelta(*told),
    ),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
}
_READERS = {tag: read for tag, _, read in _PLAIN.values()}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAKERS = {tag: kind for kind, tag in _SEQUENCES.items()}


class Values:
    """Codec between JSON and the values that executors of a workflow may send, yield, ask for and keep.

    These are the values of JSON, tuples, sets, bytes, dates, Decimals and UUIDs. They are also the framework's own
    messages, and the Enums, dataclasses, pydantic models and plain classes that handlers of the workflow name in their
    annotations.

    Args: `named` has further types that values may have, such as those of parts that are annotated as Any.
    """

    def __init__(self, named: Iterable[type] = ()) -> None:
        self._types: dict[str, type] = {}
        self._forms: dict[type, str | None] = {}
        for each in named:
            self.add(each)

    def add(self, annotation: object) -> None:
        """Add the classes of an annotation, with their subclasses, and the classes of their fields."""
        for argument in typing.get_args(annotation):
            self.add(argument)
        kind = typing.get_origin(annotation) or annotation
        if not isinstance(kind, type) or kind.__module__ == "builtins" or self._types.get(key_of(kind)) is kind:
            return
        self._types[key_of(kind)] = kind
        if kind.__module__.startswith("agent_framework"):
            return
        hints: dict[str, Any] = {}
        with suppress(Exception):  # an annotation may have a name that only type checkers know
            hints = typing.get_type_hints(kind)
        for field in hints.values():
            self.add(field)
        subclasses: list[type] = type.__subclasses__(kind)
        for subclass in subclasses:
            self.add(subclass)

    def add_workflow(self, workflow: Any) -> None:
        """Add all types that the handlers of a workflow's executors name."""
        for executor in workflow.executors.values():
            asked = [kind for pair in getattr(executor, "_response_handlers", {}) for kind in pair]
            for each in (*executor.input_types, *executor.output_types, *executor.workflow_output_types, *asked):
                self.add(each)
            if (inner := getattr(executor, "workflow", None)) is not None and hasattr(inner, "executors"):
                self.add_workflow(inner)

    # -- to JSON --------------------------------------------------------------------------------------------------

    def encode(self, value: Any, place: str) -> Any:
        """Return a value as JSON; raise InvalidPayload if a part of the value has no JSON form.

        Args: `place` is the name of the value in errors. An error about a part names it like `place[3].field`.
        """
        kind = type(value)
        if kind in UNCHANGED:
            return value
        if kind is int:
            return value if -_INT64 <= value < _INT64 else {_TAG: "int", "v": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
        if kind is dict:
            if _TAG not in value and all(type(key) is str for key in value):
                return {key: self.encode(each, f"{place}[{key!r}]") for key, each in value.items()}
            pairs = enumerate(value.items())
            return {_TAG: "dict", "v": [self.encode([*pair], f"{place}.items[{n}]") for n, pair in pairs]}
        if kind is list:
            return [self.encode(each, f"{place}[{n}]") for n, each in enumerate(value)]
        if (tag := _SEQUENCES.get(kind)) is not None:
            return {_TAG: tag, "v": [self.encode(each, f"{place}[{n}]") for n, each in enumerate(value)]}
        if (plain := _PLAIN.get(kind)) is not None:
            if getattr(value, "fold", 0) or not isinstance(getattr(value, "tzinfo", None), timezone | None):
                raise InvalidPayload(
                    f"{place} is {short_repr(value)}, which JSON cannot represent exactly: use a datetime.timezone "
                    "as tzinfo, and fold=0"
                )
            return {_TAG: plain[0], "v": plain[1](value)}
        return self._encode_object(value, kind, place)

    def passed(self, value: Any, place: str) -> Any:
        """Return a value as another process would get it; raise InvalidPayload if a part of it has no JSON form."""
        return value if type(value) in UNCHANGED else self.decode(self.encode(value, place))

    def _encode_object(self, value: Any, kind: type, place: str) -> Any:
        if isinstance(value, type) or typing.get_origin(value) is not None:
            return self._encode_type(value, place)
        if isinstance(value, BaseException):
            return {_TAG: "error", "t": kind.__name__, "v": str(value)}
        form = self._form(kind)
        if form is None:
            raise InvalidPayload(
                f"{place} is {short_repr(value)}, of type {key_of(kind)}, which cannot travel as JSON: annotate a "
                f"handler with this type, pass RayWorkflowRunner(types=[{kind.__name__}]), or send plain JSON"
            )
        if form == "enum":
            return {_TAG: "enum", "t": key_of(kind), "v": value.name}
        if form == "model":
            return {_TAG: "model", "t": key_of(kind), "v": self._encode_model(value, kind, place)}
        attributes = {name: each for name, each in _attributes(value) if name not in _RUNTIME_ONLY}
        fields = {name: self.encode(each, f"{place}.{name}") for name, each in attributes.items()}
        return {_TAG: "object", "t": key_of(kind), "v": fields}

    def _encode_type(self, value: Any, place: str) -> Any:
        if (origin := typing.get_origin(value)) is None:
            if value.__module__ != "builtins" and self._known(key_of(value)) is not value:
                raise InvalidPayload(
                    f"{place} is the type {key_of(value)}, which the workflow does not know: pass it as "
                    "RayWorkflowRunner(types=[...])"
                )
            return {_TAG: "type", "v": key_of(value)}
        name = "union" if origin in (typing.Union, types.UnionType) else self.encode(origin, place)
        return {_TAG: "alias", "t": name, "v": [self.encode(each, place) for each in typing.get_args(value)]}

    def _encode_model(self, value: Any, kind: Any, place: str) -> Any:
        told = value.model_dump(mode="json", by_alias=True)
        with suppress(ValueError):
            if kind.model_validate(told) == value:
                return self.encode(told, place)  # `told` may have floats that JSON lacks, such as NaN
        raise InvalidPayload(
            f"{place} is {short_repr(value)}, which becomes another object when its JSON is read again: let "
            "model_validate accept what model_dump(mode='json', by_alias=True) returns"
        )

    def _form(self, kind: type) -> str | None:
        """Return how objects of a class are sent: the name of a JSON form, or None if they cannot be sent."""
        if (form := self._forms.get(kind, _ABSENT)) is _ABSENT:
            known = self._known(key_of(kind)) is kind
            form = self._forms[kind] = _form_of(kind) if known else None
        return typing.cast("str | None", form)

    def _known(self, key: str) -> type | None:
        return self._types.get(key) or _of_framework(key)

    # -- from JSON ------------------------------------------------------------------------------------------------

    def decode(self, told: Any) -> Any:
        """Return the value that decoded JSON stands for; raise InvalidPayload if the value's type is not known."""
        if type(told) is dict:
            if _TAG in told:
                return self._decode_tagged(told)
            return {key: self.decode(each) for key, each in told.items()}
        return [self.decode(each) for each in told] if type(told) is list else told

    def _decode_tagged(self, told: Mapping[str, Any]) -> Any:
        tag = told[_TAG]
        told_value: Any = told.get("v")
        try:
            if tag in _MAKERS:
                return _MAKERS[tag](self.decode(each) for each in told_value)
            if tag in _READERS:
                return _READERS[tag](told_value)
            if tag in ("object", "model", "enum"):
                return self._decode_object(tag, told["t"], told_value)
            if tag == "dict":
                return dict(map(self.decode, told_value))
            if tag in ("int", "float"):
                return (int if tag == "int" else float)(told_value)
            if tag == "error":
                return error_of(told["t"], told_value)
            if tag == "type":
                return self._type(told_value)
            if tag == "alias":
                parts = tuple(self.decode(each) for each in told_value)
                return typing.Union[parts] if told["t"] == "union" else self.decode(told["t"])[parts]  # noqa: UP007
        except (KeyError, TypeError, ValueError) as error:
            raise (
                error
                if isinstance(error, InvalidPayload)
                else InvalidPayload(
                    f"{short_repr(told)} cannot be read as a value that this runner has written: {error!r}"
                )
            ) from error
        raise InvalidPayload(f"{short_repr(told)} cannot be read as a value, because its tag {tag!r} is unknown")

    def _type(self, key: str) -> type:
        module, _, name = key.partition(":")
        kind = _BUILTINS.get(name) if module == "builtins" else self._known(key)
        if not isinstance(kind, type):
            raise InvalidPayload(f"the workflow knows no type {key!r}: pass it as RayWorkflowRunner(types=[...])")
        return kind

    def _decode_object(self, tag: str, key: str, told: Any) -> Any:
        kind: Any = self._type(key)
        if self._form(kind) != tag:
            raise InvalidPayload(
                f"{short_repr(told)} was sent with the tag {tag!r}, with which no object of type {key} is sent: use "
                "the same definition of this type in all processes"
            )
        if tag == "enum":
            return kind[told]
        if tag == "model":
            return kind.model_validate(self.decode(told))
        made = object.__new__(kind)  # __init__ is not called, so no code of the class runs
        for name, each in told.items():
            object.__setattr__(made, name, self.decode(each))
        if kind.__module__.startswith("agent_framework") and "raw_representation" in _init_names(kind):
            object.__setattr__(made, "raw_representation", None)
        return made


def error_of(name: str, text: str) -> BaseException:
    """Return an error of the class with this name, if Python or the framework has such a class.

    Return a RuntimeError that names the class if there is no such class, or if it cannot be made from a text alone.
    """
    from agent_framework import exceptions  # noqa: PLC0415 - only for errors

    known = vars(builtins) | vars(exceptions) | {"InvalidPayload": InvalidPayload}
    kind = known.get(name)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # the class may need other arguments than a text
            return kind(text)
    return RuntimeError(f"{name}: {text}")


def key_of(kind: type) -> str:
    """Return the key that stands for a class in a value's JSON."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _form_of(kind: Any) -> str | None:
    if issubclass(kind, Enum):
        return "enum"
    if hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_dump"):
        return "model"
    plain = all(base is object or base.__module__ != "builtins" for base in kind.__mro__)
    pickled = any("__reduce__" in vars(base) or "__reduce_ex__" in vars(base) for base in kind.__mro__[:-1])
    return "object" if plain and not pickled and not issubclass(kind, BaseException) else None


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            # Python puts the name of the class before the name of a private attribute.
            name = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if name not in ("__dict__", "__weakref__") and (found := getattr(value, name, _ABSENT)) is not _ABSENT:
                yield name, found
    yield from getattr(value, "__dict__", {}).items()


@cache
def _init_names(kind: Any) -> frozenset[str]:
    return frozenset(kind.__init__.__code__.co_varnames) if hasattr(kind.__init__, "__code__") else frozenset()


@cache
def _of_framework(key: str) -> type | None:
    """Return the class of the framework with this name, if its objects hold data.

    The result is None if the class does more than hold data, or if its module is not imported yet.
    """
    module, _, name = key.partition(":")
    if module.split(".")[0] not in ("agent_framework", "agent_framework_orchestrations"):
        return None
    kind = vars(sys.modules.get(module, types)).get(name)
    if not isinstance(kind, type) or kind.__module__ != module:
        return None
    if any(hasattr(kind, name) for name in _ACTS):  # such a class is an agent, a client or a tool
        return None
    data = dataclasses.is_dataclass(kind) or issubclass(kind, (Enum, SerializationMixin, Content, WorkflowEvent))
    # Objects of a class without __init__ and without a base class have no attributes: only their type says something.
    signal = vars(kind).get("__init__") is None and kind.__mro__[1:] == (object,)
    return kind if data or signal or hasattr(kind, "__pydantic_serializer__") else None
