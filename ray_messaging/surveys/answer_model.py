"""The type that the answers to a survey must have."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, get_origin, is_typeddict

import msgspec

from ray_messaging.compat.payload_objects import Misfit, explained, is_msgspecs, is_native, reader_of
from ray_messaging.errors import ConfigError
from ray_messaging.model.json_types import FORMATS, JsonTypes, schema_of


class InvalidAnswer(NamedTuple):
    """An answer, as JSON, that does not fit the survey's type, and the reason why it does not fit."""

    reason: str
    data: bytes

    @property
    def payload(self) -> Any:  # noqa: ANN401 - JSON of any shape
        """Return the decoded answer."""
        return msgspec.json.decode(self.data)


class AnswerModel:
    """The type of the answers to a survey: a pydantic model, a dataclass, a TypedDict or a msgspec.Struct.

    An answer must fit the type's JSON schema, which every process checks in the same way. In a process that has the
    type, the answer must also fit the type.

    Args: `read_all` decodes a JSON array of answers, and `read_one` a single answer. If an answer does not fit the
    type, they raise an error, which may be of any class. `dump` returns values as dicts.
    """

    def __init__(
        self,
        schema: bytes,
        read_all: Callable[[bytes], list[Any]],
        read_one: Callable[[bytes], Any],
        dump: Callable[[list[Any]], list[dict[str, Any]]],
    ) -> None:
        self.schema = schema
        self.dump = dump
        self._read_all = read_all
        self._read_one = read_one
        self._fit_all, self._fit_one = _checks_of(schema)

    @classmethod
    def of(cls, model: Any) -> "AnswerModel":  # noqa: ANN401 - a class, or a type of typing
        """Build the model from a type.

        Raises: ConfigError if the type has no JSON schema, or if its values are not JSON objects.
        """
        try:
            if not isinstance(model, type) and get_origin(model) is None:
                raise TypeError("it is not a type")  # noqa: TRY301 - pydantic also takes functions
            if is_msgspecs(model) and not (is_native(model) or is_typeddict(model)):
                raise ValueError("it is a JSON array, and an answer must be a JSON object")  # noqa: TRY301 - reported below
            schema = schema_of(model)
            if (kind := schema.get("type", "object")) != "object":
                raise ValueError(f"it is a JSON {kind}, and an answer must be a JSON object")  # noqa: TRY301 - reported below
            read_all, dump = _list_of(model)
            return cls(json.dumps(schema, sort_keys=True).encode(), read_all, reader_of(model), dump)
        except (TypeError, ValueError, RuntimeError) as error:  # errors of pydantic may be RuntimeErrors
            raise ConfigError(
                f"{model!r} cannot be the type of answers ({str(error).partition(chr(10))[0]}): pass a pydantic model, "
                "a dataclass or a msgspec.Struct"
            ) from error

    @classmethod
    def of_schema(cls, schema: bytes) -> "AnswerModel":
        """Build the model from a JSON schema. Answers are checked against the schema, and stay dicts."""
        return cls(schema, msgspec.json.decode, msgspec.json.decode, list)

    def check(self, lines: Sequence[bytes]) -> list[Any]:
        """Return answers, given as JSON, as values of the type.

        An answer that does not fit becomes an InvalidAnswer.
        """
        text = b"[" + b",".join(lines) + b"]"
        try:
            self._fit_all(text)
            values = self._read_all(text)
        except Exception:  # noqa: BLE001 - a user's validator may raise any error; `_checked` finds the answer
            return [self._checked(line) for line in lines]
        return values if len(values) == len(lines) else [self._checked(line) for line in lines]

    def _checked(self, line: bytes) -> Any:  # noqa: ANN401 - a value of the type
        try:
            value = self._read_one(line)
            self._fit_one(line)
            return value  # noqa: TRY300 - both calls above may raise
        except Misfit as error:
            return InvalidAnswer(f"{error.field}: {error.reason}" if error.field else error.reason, line)
        except Exception as error:  # noqa: BLE001 - a user's validator may raise any error
            return InvalidAnswer(str(error).partition("\n")[0] or type(error).__name__, line)


def _checks_of(schema: bytes) -> tuple[Callable[[bytes], object], Callable[[bytes], object]]:
    """Return two functions that raise an error for answers that do not fit a schema.

    The first one checks a JSON array of answers, the second one a single answer.
    """
    known = msgspec.json.decode(schema)
    try:
        types = JsonTypes(known, formats=True)
        decode = types.decoder().decode

        def check(line: bytes) -> None:
            try:
                decode(line)
            except msgspec.ValidationError as error:
                raise Misfit(*explained(str(error))) from error

        return types.decoder(lists=True).decode, check
    except ConfigError:  # the schema has constraints that msgspec cannot check
        return _slow_checks(known)


def _slow_checks(schema: Any) -> tuple[Callable[[bytes], object], Callable[[bytes], object]]:  # noqa: ANN401 - JSON
    """Return two functions, like those of `_checks_of`, that check answers by a schema of any kind.

    As in `JsonTypes`, 1.0 is no integer, and a str must have the schema's format if the format is one of FORMATS.
    """
    import jsonschema  # type: ignore[import-untyped]  # noqa: PLC0415 - few schemas need it
    from referencing import Registry  # noqa: PLC0415

    draft = jsonschema.Draft202012Validator  # pydantic and msgspec write schemas of this draft
    whole = draft.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # 1.0 is no integer here
    registry: Any = Registry()  # empty: with the default one, a $ref could fetch a schema from another host
    formats = jsonschema.FormatChecker(())
    for name, kind in FORMATS.items():
        formats.checks(name, msgspec.ValidationError)(partial(_has_format, kind))
    strict = jsonschema.validators.extend(draft, type_checker=whole)
    validator = strict(schema, registry=registry, format_checker=formats)

    def check(value: object) -> None:
        if (error := jsonschema.exceptions.best_match(validator.iter_errors(value))) is not None:
            raise Misfit(error.message, ".".join(map(str, error.absolute_path)))

    def check_all(text: bytes) -> None:
        for value in msgspec.json.decode(text):
            check(value)

    return check_all, lambda line: check(msgspec.json.decode(line))


def _has_format(kind: Any, value: object) -> bool:  # noqa: ANN401 - a type
    if isinstance(value, str):  # a format concerns only values that are strs
        msgspec.convert(value, kind)
    return True


def _list_of(model: Any) -> tuple[Callable[[bytes], list[Any]], Callable[[list[Any]], list[dict[str, Any]]]]:  # noqa: ANN401 - a type
    """Return two functions for lists of values of a type.

    The first one decodes a JSON array to values, the second one returns values as dicts.
    """
    if is_msgspecs(model):
        return msgspec.json.Decoder(list[model]).decode, msgspec.to_builtins
    from pydantic import TypeAdapter  # noqa: PLC0415 - it takes a tenth of a second

    every = TypeAdapter(list[model])
    return every.validate_json, every.dump_python
