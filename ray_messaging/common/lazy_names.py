"""Names of a package whose modules are imported when a name is first used."""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType


def resolve(
    package: str, homes: Mapping[str, str], name: str, modules: Mapping[str, str] = MappingProxyType({})
) -> object:
    """Return the object that has this name in a package. The package's `__getattr__` calls this.

    Args: `homes` maps the names of objects to the modules that define them, `modules` maps names to whole modules.
    Raises: AttributeError for an unknown name.
    """
    if name in modules:
        value: object = import_module(modules[name])
    elif name in homes:
        value = getattr(import_module(homes[name]), name)
    else:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    setattr(sys.modules[package], name, value)  # so that Python finds the name without this function next time
    return value
