"""Fields of a trace's rows: found by name or default name, or composed by a template."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from string import Formatter
from typing import Any

from ray_messaging.errors import ConfigError

Getter = Callable[[Any], Any]
SHOWN_FIELDS = 20


class RowError(Exception):
    """A row is invalid. Callers that know file and line raise a TraceError from it."""


def find_field(noun: str, requested: str | None, defaults: Sequence[str], keys: Mapping[str, Any]) -> str | None:
    """Return the field to read: the requested one, else the first existing default name, or None.

    Default names match in any case. Raises RowError if the requested field does not exist.
    """
    if requested is not None:
        if requested not in keys:
            raise RowError(f"no field {requested!r} for the {noun}: the fields are {shown(keys)}")
        return requested
    # Reversed: of two spellings the file's first wins.
    by_lower = {key.lower(): key for key in reversed(list(keys))}
    return next((by_lower[name] for name in defaults if name in by_lower), None)


def is_template(field: str) -> bool:
    """Return whether a field is a template (`{game}-{sender}`) rather than a plain name."""
    return "{" in field or "}" in field


def compile_template(noun: str, template: str, keys: Mapping[str, Any]) -> Getter:
    """Return a function from a row to the id that the template composes.

    Only plain `{field}`s are permitted: an attribute or an index would let a template reach into objects. Raises
    ConfigError for anything else, RowError for a field that does not exist.
    """
    parts = [(literal, _plain_name(template, *field)) for literal, *field in _parse(template)]
    names = [name for _, name in parts if name is not None]
    if not names:
        raise ConfigError(
            f"the template {template!r} for the {noun} names no field: write one like '{{game}}-{{sender}}'"
        )
    if missing := [name for name in names if name not in keys]:
        raise RowError(f"no field {missing[0]!r} (of {template!r}) for the {noun}: the fields are {shown(keys)}")
    pieces = [(literal, None if name is None else (name, itemgetter(keys[name]))) for literal, name in parts]

    def spell(row: Any) -> str:  # noqa: ANN401 - a list or a mapping, as the keys say
        spelled = []
        for literal, field in pieces:
            spelled.append(literal)
            if field is not None:
                spelled.append(_piece(*field, row))
        return "".join(spelled)

    return spell


def shown(keys: Mapping[str, Any]) -> str:
    """Return the fields' names for an error, shortened if there are many."""
    names = [repr(name) for name in list(keys)[:SHOWN_FIELDS]]
    return ", ".join(names) + (f" and {len(keys) - SHOWN_FIELDS} more" if len(keys) > SHOWN_FIELDS else "")


def _parse(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"cannot read the template {template!r} ({error}): write one like '{{game}}-{{sender}}'"
        ) from None


def _plain_name(template: str, name: str | None, spec: str | None, conversion: str | None) -> str | None:
    if name is None:
        return None
    if not name or spec or conversion or any(char in name for char in ".[]{}"):
        raise ConfigError(
            f"cannot use the template {template!r}: write plain fields such as '{{game}}-{{sender}}', "
            "without attribute, index, conversion or format"
        )
    return name


def _piece(name: str, get: Getter, row: Any) -> str:  # noqa: ANN401 - a list or a mapping, as the keys say
    value = get(row)
    if type(value) is int:
        return str(value)
    if type(value) is not str:
        raise RowError(f"field {name!r} of the template is of type {type(value).__name__}: it must be a str or an int")
    if not (stripped := value.strip()):
        raise RowError(f"field {name!r} of the template is empty: give it a value, or drop the row")
    return stripped
