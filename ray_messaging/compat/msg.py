"""The class `Msg`, which is like AgentScope's message class. AgentScope can read its JSON."""

import time
import warnings
from collections.abc import Callable
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeGuard
from uuid import uuid4

from ray_messaging.common.texts import short_repr
from ray_messaging.compat.payload_objects import PayloadObject
from ray_messaging.errors import InvalidMsg

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

Role: TypeAlias = Literal["system", "user", "assistant"]

ROLES: tuple[Role, ...] = ("system", "user", "assistant")
_TIMESTAMP = "%Y-%m-%d %H:%M:%S"
_FIELDS = ("id", "name", "content", "role", "url", "metadata", "timestamp")
_KEYS = frozenset(("__module__", "__name__", *_FIELDS))
# The dict of a Msg names AgentScope's module, because AgentScope's `from_dict` and `deserialize` accept no other.
_AGENTSCOPE = "agentscope.message.msg"
_WRITERS = tuple((module, "Msg") for module in (_AGENTSCOPE, "agentscope.message", __name__, "ray_messaging"))
_SHOWN = 10  # an error names at most this many keys
_FIRST_COLOR, _COLORS, _PLAIN = 90, 8, "\x1b[0m"


def _field(name: str, doc: str) -> Any:  # noqa: ANN401 - a property
    """Return a property that stores its value as `_name`.

    As in AgentScope, a subclass can override its setter.
    """
    key = f"_{name}"
    return property(attrgetter(key), lambda msg, value: setattr(msg, key, value), doc=doc)


class Msg:
    """A message of AgentScope 0.1: speaker `name`, `content`, and a role: system, user or assistant.

    A Msg is accepted as a payload. Two messages are equal if their classes and fields are equal. The hash is that of
    `id`, so it does not change with the content. Keywords that AgentScope does not know are ignored with a warning.

    Args: `url` is one URL or a list of URLs, and `metadata` a str or a dict; `echo` prints the message, with the
    speaker's name in colour.
    Raises: InvalidMsg, a ValueError, for any other role.
    """

    id: str = _field("id", "The message's id: 32 hex digits, unless another one was set.")
    name: str = _field("name", "The speaker's name.")
    content: Any = _field("content", "The content, which may be any object. To be sent, it must be a JSON value.")
    url: str | list[str] | None = _field("url", "The URL or URLs of the message's images, sounds and files.")
    metadata: str | dict[str, Any] | None = _field("metadata", "The application's own data.")
    timestamp: str = _field("timestamp", f"The time of creation, `{_TIMESTAMP}` in local time, unless another was set.")

    def __init__(
        self,
        name: str,
        content: Any,  # noqa: ANN401 - AgentScope takes any content
        role: Role | str,
        url: str | list[str] | None = None,
        metadata: str | dict[str, Any] | None = None,
        echo: bool = False,  # noqa: FBT001 - AgentScope's order
        **kwargs: Any,  # noqa: ANN401 - AgentScope takes any, and uses none
    ) -> None:
        # Set the properties, not the fields, because a subclass may override setters.
        self.id = uuid4().hex
        self.name = name
        self.content = content
        self.role = role  # type: ignore[assignment]  # the setter checks it
        self.url = url
        self.metadata = metadata
        self.timestamp = time.strftime(_TIMESTAMP)
        if kwargs:
            warnings.warn(
                f"Msg does not use {', '.join(sorted(kwargs))}: leave them out, or put them into metadata", stacklevel=2
            )
        if echo:
            print(self.formatted_str(colored=True))  # noqa: T201 - what echo asks for

    @property
    def role(self) -> Role:
        """Return the speaker's role. Setting a role other than system, user or assistant raises InvalidMsg."""
        return self._role

    @role.setter
    def role(self, value: Role) -> None:
        self._role = _checked_role(value)

    def formatted_str(self, colored: bool = False) -> str:  # noqa: FBT001 - AgentScope's signature
        """Return `name: content`, and a line for each URL. With `colored`, each name has a colour of its own."""
        name = _colored(str(self.name)) if colored else self.name
        urls = self.url if isinstance(self.url, list) else [] if self.url is None else [self.url]
        return "\n".join(f"{name}: {said}" for said in (self.content, *urls))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of the fields, `__module__` and `__name__`. Content and metadata are not copied.

        For a Msg, `__module__` is AgentScope's module, because AgentScope's `from_dict` accepts no other module. For a
        subclass it is the module of that class.
        """
        module, name = _name_of(type(self))
        kept = self.__dict__
        return {
            "__module__": module,
            "__name__": name,
            "id": kept["_id"],
            "name": kept["_name"],
            "content": kept["_content"],
            "role": kept["_role"],
            "url": kept["_url"],
            "metadata": kept["_metadata"],
            "timestamp": kept["_timestamp"],
        }

    @classmethod
    def from_dict(cls, serialized_dict: dict[str, Any]) -> Self:
        """Build a Msg from a dict that `to_dict` of this class, or of AgentScope's Msg, has returned.

        The dict is not changed. The module that it names is not imported. So `Msg.from_dict` reads only dicts of a Msg,
        and the `from_dict` of a subclass reads only dicts of the subclass.

        Raises: InvalidMsg for missing or extra keys, a dict of another class, or an invalid role.
        """
        if not isinstance(serialized_dict, dict):
            raise InvalidMsg(
                f"from_dict got {short_repr(serialized_dict)}, which is not a dict: pass the result of to_dict()",
                value=serialized_dict,
            )
        if serialized_dict.keys() != _KEYS:
            raise _wrong_keys(serialized_dict)
        writer = serialized_dict["__module__"], serialized_dict["__name__"]
        if writer not in (_WRITERS if cls is Msg else (_name_of(cls),)):
            raise InvalidMsg(
                f"this dict names {writer[0]!r} as its __module__ and {writer[1]!r} as its __name__, and "
                f"{cls.__name__} cannot read it: read the dict with the class that wrote it",
                value=writer,
            )
        if cls is Msg:
            made = cls.__new__(cls)  # __init__ takes four times as long, and makes an id and a time that are not needed
            fields = {f"_{key}": serialized_dict[key] for key in _FIELDS}
            made.__dict__.update(fields, _role=_checked_role(fields["_role"]))
            return made
        made = cls(**{key: serialized_dict[key] for key in ("name", "content", "role", "url", "metadata")})
        made.id, made.timestamp = serialized_dict["id"], serialized_dict["timestamp"]
        return made

    def __getitem__(self, item: str) -> Any:  # noqa: ANN401 - a field of any type
        warnings.warn(f"a Msg is no dict: write msg.{item}", DeprecationWarning, stacklevel=2)
        return getattr(self, item)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Msg):
            return NotImplemented
        if type(self) is not type(other):
            return False
        # In a comparison of tuples, identical objects are equal whatever their == returns. Different ids end the
        # comparison early.
        try:
            return tuple(getattr(self, key) for key in _FIELDS) == tuple(getattr(other, key) for key in _FIELDS)
        except ValueError:  # the comparison of numpy arrays has no single truth value
            return False

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        fields = ("name", "content", "role", "url", "metadata", "id", "timestamp")
        return f"{type(self).__name__}({', '.join(f'{field}={getattr(self, field)!r}' for field in fields)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: "Callable[[Any], CoreSchema]") -> "CoreSchema":
        """Build the schema with which pydantic validates a Msg or the dict of one, and serializes a Msg to its dict."""
        from pydantic_core import core_schema  # noqa: PLC0415 - for those who use pydantic

        fields = _dict_schema()

        def validated(value: object, from_dict: Callable[[object], Self]) -> object:
            return value if isinstance(value, cls) else from_dict(value)

        return core_schema.no_info_wrap_validator_function(
            validated,
            core_schema.no_info_after_validator_function(cls.from_dict, fields),
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_dict, return_schema=fields),
        )


Payload: TypeAlias = dict[str, Any] | Msg | PayloadObject


def names_msg(payload: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a payload claims, by `__module__` and `__name__`, to be the dict of a Msg.

    It may still be invalid.
    """
    return isinstance(payload, dict) and (payload.get("__module__"), payload.get("__name__")) in _WRITERS


def msg_of(payload: object) -> Msg | None:
    """Return a payload as a Msg, or None if it does not claim to be one; raise InvalidMsg if the claim is false."""
    return Msg.from_dict(payload) if names_msg(payload) else None


def _checked_role(role: object) -> Role:
    if isinstance(role, str):
        for known in ROLES:
            if role == known:
                # The known role is returned, and not the argument, which may be a member of an enum.
                return known
    raise InvalidMsg(f"role {role!r} must be one of {', '.join(map(repr, ROLES))}", value=role)


def _name_of(kind: type[Msg]) -> tuple[str, str]:
    return (_AGENTSCOPE if kind is Msg else kind.__module__), kind.__name__


def _colored(name: str) -> str:
    color = _FIRST_COLOR + int(sha256(name.encode()).hexdigest(), 16) % _COLORS
    return f"\x1b[{color}m{name}{_PLAIN}"


def _wrong_keys(found: dict[Any, Any]) -> InvalidMsg:
    missing = tuple(sorted(_KEYS - found.keys()))
    extra = tuple(sorted(found.keys() - _KEYS, key=repr))
    wrong = [f"{verb} {_listed(keys)}" for verb, keys in (("lacks", missing), ("has the unknown keys", extra)) if keys]
    return InvalidMsg(
        f"this dict {' and '.join(wrong)}: a Msg's dict has the keys {', '.join(('__module__', '__name__', *_FIELDS))}",
        value=found,
        missing=missing,
        extra=extra,
    )


def _listed(keys: tuple[object, ...]) -> str:
    more = [] if len(keys) <= _SHOWN else [f"{len(keys) - _SHOWN} more"]
    return ", ".join([*map(repr, keys[:_SHOWN]), *more])


def _dict_schema() -> "CoreSchema":
    from pydantic_core import core_schema  # noqa: PLC0415 - for those who use pydantic

    text = core_schema.str_schema()
    urls = core_schema.union_schema([text, core_schema.list_schema(text)])
    metadata = core_schema.union_schema([text, core_schema.dict_schema(text, core_schema.any_schema())])
    kinds: dict[str, CoreSchema] = dict.fromkeys(("__module__", "__name__", "id", "name", "timestamp"), text) | {
        "content": core_schema.any_schema(),
        "role": core_schema.literal_schema(list(ROLES)),
        "url": core_schema.nullable_schema(urls),
        "metadata": core_schema.nullable_schema(metadata),
    }
    fields = {key: core_schema.typed_dict_field(kind) for key, kind in kinds.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior="forbid")
