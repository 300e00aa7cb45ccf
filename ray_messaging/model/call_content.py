"""Digests of calls, by content. A call's content is its code, its arguments, and the outer values that the code uses.

Equal contents have equal digests in all processes of one Python version. The digest of a function is made from its
compiled code, so comments and line numbers make no difference. An object whose content cannot be determined raises
ConfigError.
"""

import dis
import importlib
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from types import MethodType as Method
from typing import Any, Final, ParamSpec, TypeVar

import msgspec
from pydantic_core import PydanticUndefined

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError, InvalidPayload
from ray_messaging.model.exact import encode_exactly

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN = type(None), bool, float, str, bytes
_ENVIRONMENT = {"environ", "environb", "getenv"}
_INSTALLED: Final = (
    *filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))),
    *(f"{Path(__file__).parents[1]}/", "<frozen "),
)
_WRAPPERS = staticmethod, classmethod
_CODE = FunctionType, property, cached_property, *_WRAPPERS
# Attributes of these types are added by Python: they stand for slots, and for `__dict__`.
_NO_ATTRIBUTE = MemberDescriptorType, GetSetDescriptorType
_ANNOTATIONS = "__annotate__", "__annotate_func__"  # Python 3.14 adds these functions for annotations
_DIGEST_BYTES = 16
_encode = msgspec.msgpack.Encoder().encode


class ByContent(partial[R]):
    """A function for `me.remember`, and the `sample` and `uses` that were passed to `by_content` for it."""

    sample: int | None
    uses: object


def by_content(function: Callable[P, R], /, *, sample: int | None = 1, uses: object = None) -> Callable[P, R]:
    """Return `function` with settings that say how its calls by `me.remember` share answers.

    In a run with `Calls(store=)`, equal calls of a function share one answer, unless these settings say otherwise.

    Args:
        function: The function that is to be called, async or plain.
        sample: The number of different answers for equal calls. With 3, each of the equal calls gets one of three
            answers, chosen by agent, step and seed; three equal calls of an agent in one step get all three. None:
            answers are not shared, and each call is made.
        uses: A value that is compared in place of the objects that the function uses besides its arguments. Pass it if
            the content of such an object cannot be determined. For a client of a language model, `uses` may be
            ("gpt-4o", "https://...").

    Raises: ConfigError if `sample` is neither None nor a whole number of at least 1.
    """
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 1):
        raise ConfigError(
            f"sample={sample!r} must be how many answers equal calls share: a whole number of at least 1, or None to "
            "share none"
        )
    found = ByContent(function)
    found.sample, found.uses = sample, uses
    return found


def told_by(function: object) -> tuple[int | None, object]:
    """Return the `sample` and `uses` that `by_content` gave to a function, which may be wrapped in partials.

    Return (1, None), the defaults, if the function did not go through `by_content`.
    """
    while isinstance(function, partial):
        if isinstance(function, ByContent):
            return function.sample, function.uses
        function = function.func
    return 1, None


def content_digest_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], uses: object = None
) -> str:
    """Return a digest of everything on which a call through `me.remember` depends.

    Args: `uses` is the argument of `by_content`: it is digested in place of the objects that the function uses, except
    for plain values, functions and classes, which are still digested.

    Raises: ConfigError if the content of an argument or of `uses` cannot be determined. Without `uses`, also if the
    content of an object that the function uses cannot be determined.
    """
    teller = _Teller(lenient=uses is not None)
    try:
        code = teller.told(function, "")
        given = _Teller(lenient=False)
        whole = [code, given.told([*args], "arguments"), given.told(dict(kwargs), "arguments")]
        return blake2b(_encode([*whole, given.told(uses, "uses=")]), digest_size=_DIGEST_BYTES).hexdigest()
    except RecursionError:
        raise _untold("", function) from None


def _untold(place: str, value: object) -> ConfigError:
    why = f" {value}" if isinstance(value, str) else f" is {short_repr(value)}, which cannot be compared"
    remedy = (
        "say in uses= what the function uses, as in "
        "me.remember(by_content(function, uses='gpt-4o at example.org'), ...)"
    )
    if place.startswith(("arguments", "uses=")):
        remedy = "pass plain values"
    return ConfigError(
        f"Calls(store=) cannot tell whether calls of me.remember are equal, because {place or 'the function'}{why}: "
        f"{remedy}. Or have each call made, even if it equals another: "
        "me.remember(by_content(function, sample=None), ...)"
    )


class _Teller:
    """Converter of values to lists, strs and numbers. Equal contents get equal encodings in msgpack, and equal hashes.

    Args: With `lenient`, objects other than plain values, functions and classes are left out.
    """

    def __init__(self, *, lenient: bool) -> None:
        self._lenient = lenient
        # Functions, classes and modules may refer to each other. Each one that was converted has its digest here. Each
        # one that is being converted has its depth in the chain of conversions.
        self._seen: dict[tuple[bool, object], bytes | int] = {}
        self._depth = 0

    def told(self, value: Any, place: str) -> Any:  # noqa: ANN401 - any value
        """Convert a value to lists, strs and numbers, such that equal contents become equal results.

        Args: `place` is the name of the value in the error.

        Raises: ConfigError if the content cannot be determined.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else ["int", str(value)]
        if kind in (list, tuple):
            return [kind.__name__, [self.told(each, f"{place}[{at}]") for at, each in enumerate(value)]]
        if kind in (dict, set, frozenset):
            return [kind.__name__, sorted(self._members(value, place))]
        if kind is FunctionType:
            return self._once(value, lambda: self._function(value))
        if isinstance(value, type):
            return self._once(value, lambda: self._class(value, place))
        return self._object(value, kind, place)

    def _members(self, value: Any, place: str) -> Iterator[bytes]:  # noqa: ANN401 - a dict or a set
        if isinstance(value, dict):
            for key, each in value.items():
                yield _encode([self.told(key, place), self.told(each, f"{place}[{key!r}]")])
        else:
            yield from (_encode(self.told(each, place)) for each in value)

    def _once(self, value: Any, tell: Callable[[], list[Any]]) -> list[Any]:  # noqa: ANN401 - a function, class, module
        """Convert a function, class or module by calling `tell`, unless it was converted before.

        Return a short list that stands for the result, such as the result's digest.
        """
        key = self._lenient, value
        if (known := self._seen.get(key)) is not None:
            return ["seen", known]
        self._seen[key] = self._depth
        self._depth += 1
        told = tell()
        self._depth -= 1
        if told[0] == "library":
            del self._seen[key]
            return told
        self._seen[key] = digest = blake2b(_encode(told), digest_size=_DIGEST_BYTES).digest()
        return ["seen", digest]

    def _function(self, function: FunctionType) -> list[Any]:
        code = function.__code__
        name = function.__qualname__
        if _is_installed(code.co_filename):
            if not function.__closure__ or ("<locals>" not in name and _is_of_library(function.__module__)):
                return ["library", function.__module__, name]
            return ["made by a library", function.__module__, name, *self._made_by_library(function)]
        used = self._cells(function)
        names = {*_names_in(code)}
        outside = function.__globals__
        used += [[each, self._global(outside[each], names, each)] for each in sorted(names & outside.keys())]
        used += [self._import(each, level, outside, names) for each, level in _imports_in(code)]
        used += [
            [each, self.told(part, f"the function's '{name}.{each}'")]
            for each, part in sorted(vars(function).items())
            if not each.startswith("__")
        ]
        given = (
            self.told(function.__defaults__, f"a default of {name}"),
            self.told(function.__kwdefaults__, f"a default of {name}"),
        )
        return ["function", name, [*_parts_of(code)], given, used]

    def _made_by_library(self, function: FunctionType) -> list[Any]:
        """Convert a function that a library has made, such as a decorated function of the user.

        If the function has a `__wrapped__`, the wrapped function is included, and objects that belong to the decorator
        are left out: for a decorator that retries, such an object may set the pauses between the tries.
        """
        if (wrapped := getattr(function, "__wrapped__", None)) is None:
            return self._cells(function)
        told, lenient = self.told(wrapped, f"the function {function.__qualname__!r}"), self._lenient
        self._lenient = True
        try:
            return [told, *self._cells(function)]
        finally:
            self._lenient = lenient

    def _cells(self, function: FunctionType) -> list[Any]:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        return [[each, self._cell(cell, f"the function's {each!r}")] for each, cell in cells]

    def _cell(self, cell: Any, place: str) -> Any:  # noqa: ANN401 - a cell of a closure
        try:
            value = cell.cell_contents
        except ValueError:  # the variable has no value yet
            return ["empty"]
        return self.told(value, place)

    def _global(self, value: Any, names: set[str], name: str) -> Any:  # noqa: ANN401 - any global
        if not isinstance(value, ModuleType):
            return self.told(value, f"the function's {name!r}")
        if value.__name__ == "os" and (read := names & _ENVIRONMENT) and not self._lenient:
            raise _untold(
                f"the function's 'os.{min(read)}'", "reads the environment, whose values the store does not know"
            )
        return self._once((value, frozenset(names)), lambda: self._module(value, names, name))

    def _module(self, module: ModuleType, names: set[str], name: str) -> list[Any]:
        """Return the parts of a module that some code may use: the attributes that are among the names in this code.

        For a library, these are only its attributes that are plain values.
        """
        found: list[Any] = ["module", module.__name__]
        file = getattr(module, "__file__", None)
        own = isinstance(file, str) and not _is_installed(file) and not module.__name__.startswith("ray_messaging")
        for each in sorted(names & vars(module).keys()):
            part = vars(module)[each]
            if own and isinstance(part, ModuleType):
                found.append([each, self._global(part, names, each)])
            elif type(part) in (*_PLAIN, int) or own:
                found.append([each, self.told(part, f"the function's '{name}.{each}'")])
        return found

    def _import(self, name: str, level: int, outside: Mapping[str, Any], names: set[str]) -> list[Any]:
        """Convert a module that a function imports in its body. For a library other than `os`, return only the name.

        Args: `level` is the number of leading dots of the import, `outside` has the function's globals, and `names` has
        the names in the function's code.
        """
        package = outside.get("__package__")
        whole = resolve_name("." * level + name, package) if level and package else name
        if whole == "os" or not _is_found_in_library(whole.partition(".")[0]):
            try:
                return [whole, self._global(importlib.import_module(whole), names, whole)]
            except ImportError:
                return [whole, "absent"]
        return [whole]

    def _class(self, kind: Any, place: str) -> list[Any]:  # noqa: ANN401 - a class
        if _is_of_library(kind.__module__):
            return ["library", kind.__module__, kind.__qualname__]
        parts = {**vars(kind)}
        told: list[Any] = [self.told(base, place) for base in (type(kind), *kind.__bases__)]
        if issubclass(kind, Enum):
            told += [[each.name, self.told(each.value, place)] for each in kind]
        elif callable(schema := getattr(kind, "model_json_schema", None)):  # a pydantic model
            told += [msgspec.json.encode(schema(), order="deterministic"), *self._beside_schema(kind, place)]
            parts |= {name: part.wrapped for name, part in parts.items() if hasattr(part, "decorator_info")}
        else:
            # Only a msgspec Struct has `__struct_defaults__`, the default values of its fields.
            told += [self._default(each, place) for each in getattr(kind, "__struct_defaults__", ())]
            return ["class", kind.__qualname__, told, self._members_of(kind, parts)]
        parts = {name: part for name, part in parts.items() if isinstance(part, _CODE)}
        return ["class", kind.__qualname__, told, self._members_of(kind, parts)]

    def _beside_schema(self, kind: Any, place: str) -> Iterator[list[Any]]:  # noqa: ANN401 - a pydantic model
        """Yield what a pydantic model's JSON schema lacks: class variables, private attributes, functions of fields."""
        for name in sorted(kind.__class_vars__ & vars(kind).keys()):
            yield [name, self.told(vars(kind)[name], f"the function's '{kind.__qualname__}.{name}'")]
        for name, part in sorted(kind.__private_attributes__.items()):
            yield [name, self._default(part.default, place), self.told(part.default_factory, place)]
        for name, part in sorted(kind.model_fields.items()):
            functions = part.default_factory, *(getattr(each, "func", None) for each in part.metadata)
            yield from ([name, self.told(each, place)] for each in functions if each is not None)

    def _default(self, value: Any, place: str) -> Any:  # noqa: ANN401 - a default value, or a sign that there is none
        if value is msgspec.NODEFAULT or value is PydanticUndefined:
            return ["no default"]
        return self.told(getattr(value, "factory", value), place)

    def _members_of(self, kind: Any, parts: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401 - a class
        return [
            [name, self._attribute(part, f"the function's '{kind.__qualname__}.{name}'")]
            for name, part in sorted(parts.items())
            if _counts(name, part)
        ]

    def _attribute(self, part: Any, place: str) -> Any:  # noqa: ANN401 - an attribute of a class
        if isinstance(part, _WRAPPERS):
            return [type(part).__name__, self.told(part.__func__, place)]
        if isinstance(part, property):
            return ["property", [self.told(each, place) for each in (part.fget, part.fset, part.fdel)]]
        if isinstance(part, cached_property):
            return ["cached", self.told(part.func, place)]
        return self.told(part, place)

    def _object(self, value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401 - any other object
        if isinstance(value, Method):
            of = (
                self.told(type(value.__self__), place)
                if self._lenient
                else self.told(value.__self__, "the method's object")
            )
            return ["method", self.told(value.__func__, place), of]
        if isinstance(value, partial):
            parts = (value.func, value.args, value.keywords)
            return ["partial", [self.told(each, place) for each in parts]]
        if isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            of = owner.__name__ if isinstance(owner, ModuleType) else None if owner is None else self.told(owner, place)
            return ["builtin", value.__qualname__, of]
        if isinstance(value, Enum):
            return ["member", self.told(kind, place), value.name]
        if isinstance(value, re.Pattern):
            return ["pattern", value.pattern, value.flags]
        # The value is a wrapper of a function, such as functools.lru_cache makes.
        if isinstance(getattr(value, "__wrapped__", None), FunctionType) and (
            self._lenient or _is_of_library(kind.__module__)
        ):
            return ["wrapped", self.told(kind, place), self.told(value.__wrapped__, place)]
        if self._lenient:
            return ["left out"]
        if callable(tell := getattr(kind, "call_content", None)):  # the class names its content, as `models.Chat` does
            return ["told", self.told(kind, place), self.told(tell(value), place)]
        try:
            return ["exact", encode_exactly(value, place)]
        except (InvalidPayload, TypeError, ValueError):
            return self._of_a_class(value, kind, place)

    def _of_a_class(self, value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401 - an object with attributes
        told = self.told(kind, place)
        if callable(getattr(value, "model_dump", None)):
            hidden = [getattr(value, f"__pydantic_{name}__", None) for name in ("private", "extra")]
            return ["model", told, self.told([vars(value), *hidden], place)]
        if told[0] == "library" and not is_dataclass(value):
            # Clients of OpenAI, Anthropic and httpx have a base_url. Their other attributes are left out, because they
            # are connections.
            if (url := getattr(value, "base_url", None)) is not None and kind.__module__.partition(".")[
                0
            ] != "builtins":
                return ["client", told, str(url)]
            if kind.__module__ == "dataclasses":  # such as the marker of a field with a default_factory
                return told
            raise _untold(place, value)
        slots = [
            (name, part.__get__(value))
            for base in kind.__mro__
            for name, part in vars(base).items()
            if isinstance(part, MemberDescriptorType) and hasattr(value, name)
        ]
        if not hasattr(value, "__dict__") and not slots:
            raise _untold(place, value)
        inner = place or "the object"
        parts = sorted([*getattr(value, "__dict__", {}).items(), *slots], key=lambda part: part[0])
        named = [[name, self.told(part, f"{inner}.{name}")] for name, part in parts]
        return ["object", told, named, self._inherited(value, kind, place)]

    def _inherited(self, value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401 - an object
        """Return what an object contains besides its attributes, such as the items of a subclass of dict."""
        bases = [base for base in kind.__mro__ if base is not object and base.__module__ not in ("abc", "typing")]
        if not any(_is_of_library(base.__module__) for base in bases):
            return None
        if isinstance(value, set | frozenset):
            return self.told({*value}, place)
        try:
            parts = value.__reduce_ex__(2)
            _, args, state, items, pairs = [*parts, None, None, None][:5]
            # If a class does not define its own pickling, `state` contains only the object's attributes, which
            # `_of_a_class` converts.
            own = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__"))
            inherited = [*args], None if own else state, [*(items or ())], [*(pairs or ())]
        except Exception:  # noqa: BLE001 - the class's own code may raise any error
            raise _untold(place, value) from None
        return self.told(inherited, place)


def _counts(name: str, part: object) -> bool:
    """Return whether an attribute of a class is part of the class's content, and not added by Python itself."""
    if isinstance(part, _CODE):
        return name not in _ANNOTATIONS
    return (
        not (name.startswith("__") and name.endswith("__"))
        and name != "_abc_impl"
        and not isinstance(part, _NO_ATTRIBUTE)
    )


def _is_installed(file: str) -> bool:
    return file.startswith(_INSTALLED) or "-packages" in file


def _is_of_library(module: str | None) -> bool:
    """Return whether a module is not the user's own: it is installed, or of the standard library or ray_messaging.

    For an object without a module, `module` is None, and the result is True.
    """
    if module is None or module.partition(".")[0] in (*sys.stdlib_module_names, "ray_messaging"):
        return True
    return _is_installed(getattr(sys.modules.get(module), "__file__", None) or "")


@lru_cache(maxsize=10_000)
def _is_found_in_library(module: str) -> bool:
    """Return whether a module is not the user's own (see `_is_of_library`), without importing the module."""
    if _is_of_library(module):
        return True
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and _is_installed(spec.origin or "")


@lru_cache(maxsize=10_000)
def _imports_in(code: CodeType) -> tuple[tuple[str, int], ...]:
    """Return the names of the modules that some code imports, each with the number of dots before it."""
    found, before = [], [None, None]
    for each in dis.get_instructions(code):
        if each.opname == "IMPORT_NAME":
            found.append((str(each.argval), int(before[0] or 0)))
        before = [before[1], each.argval]
    nested = (each for constant in code.co_consts if isinstance(constant, CodeType) for each in _imports_in(constant))
    return *found, *nested


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _parts_of(code: CodeType) -> Iterator[Any]:
    yield [code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_argcount]
    yield [code.co_kwonlyargcount, code.co_posonlyargcount, code.co_exceptiontable]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield [*_parts_of(constant)]
        elif isinstance(constant, frozenset):  # the order of a frozenset's members differs between processes
            yield ["frozenset", sorted(map(repr, constant))]
        else:
            yield [type(constant).__name__, repr(constant)]
