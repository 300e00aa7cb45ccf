"""Digests of what a model uses besides its agents' states: equal for equal content, also in another process."""

import pickle
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from time import thread_time
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

_LONGEST_S: Final = 1.0
_OTHERS = "ray.", "ray_messaging.", "torch."  # handles, and what may be on another device
_BY_NAME = type, FunctionType, BuiltinFunctionType, MethodType, ModuleType  # their code is not looked at
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, dict, list, tuple))
_SETS = frozenset((set, frozenset))


def content_digest(value: object, *, anywhere: bool = True) -> str | None:
    """Return a digest of a value; None if it has none, or that takes more than a second of the processor.

    With `anywhere` it is the same in all processes. Without, it tells changes of one object in this process alone, is
    faster, and may hold itself.
    """
    with suppress(Exception):  # of any kind: the objects' own code runs
        return _digest(value, thread_time() + _LONGEST_S, anywhere).hex()
    return None


def _digest(value: object, until: float, anywhere: bool) -> bytes:  # noqa: FBT001 - as above
    written = _Written(until)
    pickler = _Pickler(written, 5)
    pickler.until, pickler.fast = until, anywhere  # without the memo, which depends on which equal parts are one object
    pickler.dump(value)
    return written.hash.digest()


class _Written:
    """A file that keeps only a digest of what was written.

    Raises: TimeoutError if the thread has run until `until`.
    """

    def __init__(self, until: float) -> None:
        self.hash = blake2b(digest_size=16)
        self._until = until

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes, or what has them
        self.hash.update(data)
        if thread_time() > self._until:
            raise TimeoutError
        return len(data)


class _Pickler(pickle.Pickler):
    """A pickler whose result nobody reads."""

    until = 0.0

    def persistent_id(self, obj: Any) -> object:  # noqa: ANN401 - any part of a value
        """Return what stands for an object; None: its pickle does."""
        kind = type(obj)
        if kind in _PLAIN:
            return None
        if kind in _SETS:  # in an order that does not depend on the process
            return kind.__name__, sorted(_digest(member, self.until, anywhere=True) for member in obj)
        if kind is np.ndarray and not obj.dtype.hasobject:
            data: Any = np.ascontiguousarray(obj).reshape(-1).view(np.uint8)
            return obj.dtype.str, obj.shape, blake2b(data).digest()
        if isinstance(obj, _BY_NAME) or f"{kind.__module__}.".startswith(_OTHERS):
            return str(getattr(obj, "__module__", "")), str(getattr(obj, "__qualname__", kind.__qualname__))
        if hasattr(kind, "itertuples") and hasattr(kind, "iloc"):  # a DataFrame, which reading may rearrange
            columns = [obj.iloc[:, place].to_numpy() for place in range(obj.shape[1])]
            return [*obj.columns], obj.index.to_numpy(), columns
        return None

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as pickle has it
        """Return the parts of an object, without those that reading it has cached."""
        kind = type(obj)
        if not hasattr(obj, "__dict__"):
            return NotImplemented
        parts = obj.__reduce_ex__(5)
        if len(parts) < 3 or type(parts[2]) is not dict:  # the third is the state
            return parts
        kept = {
            name: part
            for name, part in parts[2].items()
            if not isinstance(getattr(kind, name, None), cached_property) and not name.startswith("__")
        }
        return *parts[:2], kept, *parts[3:]
