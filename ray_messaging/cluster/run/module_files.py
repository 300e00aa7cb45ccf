"""Digests of the files of users' modules, by which a change of a function that a model imports is noticed."""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Final

_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")
_OTHERS: Final = sys.stdlib_module_names | {"ray_messaging", "__main__", "__mp_main__"}


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package, and not to the user's own code."""
    return "-packages" in file or file.startswith(_STANDARD_LIBRARY)


def is_users(module: str) -> bool:
    """Return whether a module is the user's own, and has a file."""
    return (spec := _spec_of(module)) is not None and spec.origin is not None


def files_used(modules: Iterable[str]) -> dict[str, str]:
    """Return digests of the files of the user's modules among `modules`, and of those that they import, by name.

    No module is imported. So a module counts whether or not the function that imports it has already been called.
    """
    found: dict[str, str] = {}
    waiting = [*modules]
    while waiting:
        name = waiting.pop()
        if name in found or (spec := _spec_of(name)) is None or spec.origin is None:
            continue
        try:
            facts = Path(spec.origin).stat()
            found[name], imports = _read(spec.origin, facts.st_mtime_ns, facts.st_size)
        except (OSError, SyntaxError, ValueError):  # the file is gone, or cannot be read
            continue
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        for level, module in imports:
            whole = _absolute(level, module, package)
            waiting += [whole[:end] for end, sign in enumerate(f"{whole}.") if sign == "." and end]
    return dict(sorted(found.items()))


def _absolute(level: int, module: str, package: str) -> str:
    try:
        return resolve_name("." * level + module, package) if level else module
    except ImportError:  # there are more dots than packages
        return ""


def _spec_of(name: str) -> ModuleSpec | None:
    """Return where a module of the user's is; None for other modules."""
    top, _, below = name.partition(".")
    if not top or top in _OTHERS:
        return None
    spec: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None:
        try:
            parent = _spec_of(name.rpartition(".")[0]) if below else None
            places = None if parent is None else parent.submodule_search_locations
            spec = find_spec(name) if not below else PathFinder.find_spec(name, places) if places else None
        except (ImportError, ValueError):
            return None
    # A folder without `__init__.py` has no file, but may have modules of the user's.
    if spec is None or (spec.origin is None and spec.submodule_search_locations is None):
        return None
    return None if spec.origin is not None and is_installed(spec.origin) else spec


@lru_cache(maxsize=1000)
def _read(path: str, _changed_ns: int, _size: int) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return a digest of a file, and what the file imports: the number of leading dots, and the name.

    In `from town import street`, town.street may be a module or not, so it is returned, too.
    """
    data = Path(path).read_bytes()
    imports = dict.fromkeys(_imports_in(data)) if path.endswith(".py") else {}
    return blake2b(data, digest_size=8).hexdigest(), (*imports,)


def _imports_in(data: bytes) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.Import):
            yield from ((0, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((node.level, f"{module}.{each.name}".lstrip(".")) for each in node.names)
