"""Tables for notebooks, as HTML."""

import html
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ray_messaging.common.texts import printable, shortened

SHOWN = 20  # a table shows at most this many rows
_SCANNED = 500  # at most this many characters or bytes of a value are processed, except for a text that is shown whole


def html_table(title: str, columns: Mapping[str, Sequence[Any]], total: int, *, whole: bool = False) -> str:
    """Return an HTML table with its title. All values are escaped, so none becomes markup.

    Args: `columns` has the first rows, at most SHOWN, of a table with `total` rows. With `whole`, long texts in cells
    are not shortened.
    """
    names = "".join(f"<th>{_escaped(name)}</th>" for name in columns)
    rows = ["".join(_cell(value, whole=whole) for value in row) for row in zip(*columns.values(), strict=True)]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    more = f"<p>... and {total - len(rows):,} more</p>" if total > len(rows) else ""
    table = f'<table class="dataframe"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>' if rows else ""
    head = f"<p><b>{_escaped(title)}</b></p>" if title else ""
    return f"<div>{head}{table}{more}</div>"


def _cell(value: object, *, whole: bool) -> str:
    if isinstance(value, bool | int | float):
        number = f"{value:g}" if isinstance(value, float) else str(value)
        return f'<td style="text-align: right">{number}</td>'
    return f'<td style="text-align: left">{_escaped(_text(value), whole=whole)}</td>'


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value[:_SCANNED].decode(errors="replace")
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    try:
        return msgspec.json.encode(value, enc_hook=repr)[:_SCANNED].decode(errors="replace")
    except (TypeError, ValueError, RecursionError):  # the value has invalid keys, or contains itself
        return repr(value)


def _escaped(text: str, *, whole: bool = False) -> str:
    return html.escape(printable(text if whole else shortened(text[:_SCANNED])))
