"""Objects as payloads: dataclasses, msgspec.Structs and pydantic models, and their conversion from and to JSON."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, TypeGuard, TypeVar, is_typeddict

import msgspec

from ray_messaging.errors import InvalidPayload

T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(.*)`$")  # the path of a field, at the end of msgspec's errors
_INDEX = re.compile(r"\[(\d+)\]")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_BRACE = ord("{")
_UNKNOWN = re.compile(r"contains unknown field `([^`]*)`")


class _DataclassObject(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _StructObject(Protocol):
    __struct_fields__: ClassVar[tuple[str, ...]]


class _PydanticObject(Protocol):
    @property
    def __pydantic_serializer__(self) -> Any: ...  # noqa: ANN401 - pydantic's


PayloadObject = _DataclassObject | _StructObject | _PydanticObject


class Misfit(Exception):
    """Error for a JSON value that does not fit a type. `field` is the path of the part that does not fit ("": all)."""

    def __init__(self, reason: str, field: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field


# The library that encodes the objects of a type. None: such objects, for example dicts, are no PayloadObjects.
Form = Literal["msgspec", "pydantic"] | None


def _form_of(kind: type) -> Form:
    if hasattr(kind, "__pydantic_serializer__"):  # a pydantic dataclass has aliases that msgspec does not know
        return "pydantic"
    return "msgspec" if hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__") else None


form_of: Callable[[Any], Form] = lru_cache(maxsize=1024)(_form_of)


def is_object(payload: object) -> TypeGuard[PayloadObject]:
    """Return whether a payload is a dataclass, a Struct or a pydantic object, which have a JSON form of their own."""
    return form_of(type(payload)) is not None


def encode_object(payload: PayloadObject, encode: Callable[[object], bytes]) -> bytes:
    """Return an object as JSON. `encode` encodes the objects that msgspec supports.

    Raises: InvalidPayload if the result is not a JSON object; ValueError if an encoder raises it.
    """
    if form_of(type(payload)) == "pydantic":
        # The fields are written under their aliases, because pydantic reads them under these names.
        line: bytes = payload.__pydantic_serializer__.to_json(payload, by_alias=True)  # type: ignore[union-attr]
    else:
        line = encode(payload)
    if line[0] != _BRACE:
        shown = line[:20].decode(errors="replace") + "..." * (len(line) > 20)
        raise InvalidPayload(
            f"the payload, of type {type(payload).__name__}, becomes {shown} in JSON, but a payload must be a JSON "
            "object: put it into a dict, such as {'value': payload}"
        )
    return line


def is_native(kind: type) -> bool:
    """Return whether msgspec encodes objects of this type as JSON objects."""
    config = getattr(kind, "__struct_config__", None)
    return form_of(kind) == "msgspec" and not (config is not None and config.array_like)


def is_msgspecs(kind: type) -> bool:
    """Return whether msgspec decodes objects of this type. If not, pydantic does."""
    return form_of(kind) == "msgspec" or is_typeddict(kind)


Encoded = bytes | dict[str, Any]  # a payload: its JSON, or the dict that the JSON encodes


def reader_of(kind: type[T]) -> Callable[[Encoded], T]:
    """Return a function that decodes a payload to an object of a type.

    The function raises Misfit if the payload does not fit the type, and ValueError if it is not JSON. msgspec decodes
    msgspec.Structs, plain dataclasses and TypedDicts, and pydantic all other types.
    """
    try:
        reader: Callable[[Encoded], T] = _kept_reader(kind)
    except TypeError:  # the type is unhashable, or neither msgspec nor pydantic supports it
        reader = _new_reader(kind)
    return reader


def _new_reader(kind: type[T]) -> Callable[[Encoded], T]:
    return _msgspec_reader(kind) if is_msgspecs(kind) else _pydantic_reader(kind)


_kept_reader: Callable[[Any], Callable[[Encoded], Any]] = lru_cache(maxsize=256)(_new_reader)


def _msgspec_reader(kind: type[T]) -> Callable[[Encoded], T]:
    decode = msgspec.json.Decoder(kind).decode

    def read(payload: Encoded) -> T:
        try:
            return decode(payload) if isinstance(payload, bytes) else msgspec.convert(payload, kind)
        except msgspec.ValidationError as error:
            raise Misfit(*explained(str(error))) from error
        except msgspec.DecodeError as error:  # in older releases of msgspec, a DecodeError is not a ValueError
            raise ValueError(str(error)) from error

    return read


def explained(text: str) -> tuple[str, str]:
    """Split the text of a msgspec error into its reason and the path of the field; return both."""
    found = _PATH.search(text)
    reason, path = (text[: found.start()], _INDEX.sub(r".\1", found[1])) if found else (text, "")
    named = _MISSING.search(reason) or _UNKNOWN.search(reason)
    return reason, ".".join(filter(None, (path, named[1] if named else "")))


def _pydantic_reader(kind: type[T]) -> Callable[[Encoded], T]:
    import pydantic  # noqa: PLC0415 - it takes a tenth of a second, and most processes read no models

    adapter = pydantic.TypeAdapter(kind)
    of_json, of_dict = adapter.validate_json, adapter.validate_python

    def read(payload: Encoded) -> T:
        try:
            return of_json(payload) if isinstance(payload, bytes) else of_dict(payload)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            if first["type"] == "json_invalid":
                raise ValueError(first["msg"]) from error
            raise Misfit(first["msg"], ".".join(map(str, first["loc"]))) from error

    return read
