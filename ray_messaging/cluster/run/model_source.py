"""Name and source of a model, by which a resumed run tells that its model has changed."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any


def name_of(function: object) -> str:
    """Return the name of a function, or of an object's class, with its module."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{getattr(function, '__module__', '?')}.{name}"


def source_of(model: object) -> str | None:
    """Return a digest of a model's file, or of its own text in a notebook; None: no source, as after `exec`."""
    while isinstance(model, partial):
        model = model.func
    code = model if hasattr(model, "__qualname__") else type(model)
    for found in (inspect.getmodule(code), code):
        with suppress(OSError, TypeError):
            return blake2b(inspect.getsource(found).encode(), digest_size=8).hexdigest()  # type: ignore[arg-type]
    return None


def change_of(now: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """Return a line that says that a run's model has another source than `before`, or None if it has not."""
    sources = now["source"], before.get("source")
    if None in sources or sources[0] == sources[1]:
        return None
    former = "" if before["model"] == now["model"] else f", in place of {before['model']},"
    return (
        f"the source of the model {now['model']}{former} is not that of this run's last start: if the model itself has "
        "changed, the steps so far came from another one; on_existing='reset' begins anew\n"
    )
