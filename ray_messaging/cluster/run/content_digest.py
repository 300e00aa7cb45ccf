"""Digests of objects that a user passes to a run, such as `shared` or a rule, by which their changes are noticed."""

import pickle
import sys
from contextlib import suppress
from functools import cached_property, lru_cache
from hashlib import blake2b
from time import perf_counter, thread_time
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

import numpy as np

_LONGEST_S: Final = 1.0
_WALL: Final = 5  # the limit of a digest's elapsed time is this many times the limit of its processor time
_CHUNK: Final = 1 << 20  # the number of bytes between two checks of the time
# The approximate speeds of blake2b and of pickle. They serve to estimate whether the time is enough for an object.
_BYTES_PER_S: Final = 1e9
_OBJECTS_PER_S: Final = 5e6
# For an object whose class is from one of these packages, a digest has only the name of the class: such objects are
# handles, or may be on another device.
_OTHERS = "ray.", "ray_messaging.", "torch."
# For objects of these types, a digest has only their names.
_BY_NAME = type, FunctionType, BuiltinFunctionType, MethodType, ModuleType
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, dict, list, tuple))
_SETS = frozenset((set, frozenset))
_HOOKS = frozenset(
    f"__{name}__"
    for name in (
        *("class", "dict", "getattr", "getattribute"),
        *("getnewargs", "getnewargs_ex", "getstate", "reduce", "reduce_ex"),
    )
)
_IN_C = type(None), GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType
# Pickling an object whose class is from one of these modules does not change the object.
_PURE = sys.stdlib_module_names | {"networkx", "numpy", "pandas", "pyarrow", "scipy"}


def content_digest(value: object, *, anywhere: bool = True, longest_s: float = _LONGEST_S) -> str | None:
    """Return a digest of a value, or None if it has no digest, or if computing it would take more than `longest_s`.

    With `anywhere`, the digest is the same in all processes. Without `anywhere`, the digest only shows whether an
    object has changed in this process, but it is computed faster, and the object may contain itself. `longest_s` is in
    seconds of processor time.

    A value has no digest if it cannot be pickled. It also has no digest if it contains an object whose class has Python
    code, such as `__getstate__`, that runs when the object is pickled or its attributes are read. Such code may be
    slow, or change the object.
    """
    with suppress(Exception):  # pickling an object may raise any error
        return _digest(value, _Time(longest_s), anywhere).hex()
    return None


def _digest(value: object, time: "_Time", anywhere: bool) -> bytes:  # noqa: FBT001 - as above
    written = _Written(time)
    pickler = _ContentPickler(written, 5)
    # `fast` turns off the memo. With the memo, the result depends on whether equal parts are the same object.
    pickler.time, pickler.fast = time, anywhere
    pickler.dump(value)
    return written.hash.digest()


def _digest_of_array(array: Any, time: "_Time") -> bytes:  # noqa: ANN401 - an array without objects
    """Return a digest of an array's bytes. Only a small part of the bytes is copied at a time."""
    time.need(array.nbytes / _BYTES_PER_S)
    written, size = _Written(time), max(1, _CHUNK // max(1, array.itemsize))
    parts: Any = [array]
    if not array.flags.c_contiguous:
        parts = np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=size)
    for part in parts:
        written.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
    return written.hash.digest()


@lru_cache(maxsize=10_000)
def _has_hooks(kind: Any) -> bool:  # noqa: ANN401 - a class
    """Return whether a class has Python code that runs when an object is pickled or read, and may change the object."""
    hooks = (vars(base)[name] for base in kind.__mro__ for name in _HOOKS & vars(base).keys())
    return any(
        not isinstance(hook, _IN_C) and f"{getattr(hook, '__module__', '')}".partition(".")[0] not in _PURE
        for hook in hooks
    )


class _Time:
    """The time limit of one digest: `seconds` of processor time after this object was made.

    The elapsed time is also limited, to _WALL times `seconds`.
    """

    def __init__(self, seconds: float) -> None:
        self._end = thread_time() + seconds
        self._wall = perf_counter() + _WALL * seconds

    def need(self, seconds: float = 0.0) -> None:
        """Raise TimeoutError if less than `seconds` of processor time are left, or if too much time has elapsed."""
        if thread_time() + seconds > self._end or perf_counter() > self._wall:
            raise TimeoutError


class _Written:
    """A file that stores only a digest of what is written to it."""

    def __init__(self, time: _Time) -> None:
        self.hash = blake2b(digest_size=16)
        self._time = time

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes, or what has them
        view = memoryview(data)
        self._time.need(view.nbytes / _BYTES_PER_S)
        view = view.cast("B") if view.nbytes else view  # an empty view cannot be cast
        for begin in range(0, view.nbytes, _CHUNK):
            self.hash.update(view[begin : begin + _CHUNK])
            self._time.need()
        return view.nbytes


class _ContentPickler(pickle.Pickler):
    """A pickler whose result serves only to compute a digest."""

    time: _Time

    def persistent_id(self, obj: Any) -> object:  # noqa: ANN401 - any part of a value
        """Return what is pickled in place of an object; None: the object itself is pickled."""
        kind: Any = type(obj)
        if kind in _PLAIN:
            return None
        if kind in _SETS:  # a set is pickled in an order that does not depend on the process
            return kind.__name__, sorted(_digest(member, self.time, anywhere=True) for member in obj)
        if issubclass(kind, np.ndarray):
            self.time.need(obj.size / _OBJECTS_PER_S if obj.dtype.hasobject else obj.nbytes / _BYTES_PER_S)
            if kind in (np.ndarray, np.memmap) and not obj.dtype.hasobject:
                turned = obj.flags.f_contiguous and not obj.flags.c_contiguous
                return obj.dtype.str, obj.shape, turned, _digest_of_array(obj.T if turned else obj, self.time)
        if issubclass(kind, _BY_NAME) or f"{kind.__module__}.".startswith(_OTHERS):
            return str(getattr(obj, "__module__", "")), str(getattr(obj, "__qualname__", kind.__qualname__))
        if hasattr(kind, "itertuples") and hasattr(kind, "iloc"):  # reading a DataFrame may change its inner layout
            return self._frame(obj)
        if _has_hooks(kind):
            raise TypeError(kind)
        return None

    def _frame(self, frame: Any) -> object:  # noqa: ANN401 - a DataFrame
        made = sum(not isinstance(dtype, np.dtype) or dtype.hasobject for dtype in [*frame.dtypes, frame.index.dtype])
        self.time.need(made * len(frame) / _OBJECTS_PER_S)
        columns = []
        for place in range(frame.shape[1]):
            columns.append(frame.iloc[:, place].to_numpy())
            self.time.need()
        return [*frame.columns], frame.index.to_numpy(), columns

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as pickle has it
        """Return the parts from which pickle builds an object, as `__reduce_ex__` does.

        The values of cached properties are left out, because reading the object may add them. Attributes whose names
        begin with two underscores are left out, too.
        """
        kind = type(obj)
        if not hasattr(obj, "__dict__"):
            return NotImplemented
        parts = obj.__reduce_ex__(5)
        if len(parts) < 3 or type(parts[2]) is not dict:  # the third part is the object's state
            return parts
        kept = {
            name: part
            for name, part in parts[2].items()
            if not isinstance(getattr(kind, name, None), cached_property) and not name.startswith("__")
        }
        return *parts[:2], kept, *parts[3:]
