"""Errors and warnings of adapters whose other system is not installed, or has another version than the tested one."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata


@contextmanager
def needs(system: str, package: str) -> Iterator[None]:
    """Wrap imports of another system; if it is missing, raise a ModuleNotFoundError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"this adapter needs {system} (there is no module {missing.name!r}): pip install {package}",
            name=missing.name,
        ) from missing


def warn_unless_tested(package: str, tested: str, adapter: str) -> None:
    """Warn the caller's caller if the installed version of a package is not the tested one.

    Args: `tested` is the tested version: "2.9.3", or "2.9" for all versions that begin with it.
    """
    try:
        installed = metadata.version(package)
    # The package may be missing, because a program can use the adapter with objects of its own with the same methods.
    except metadata.PackageNotFoundError:
        return
    if installed != tested and not installed.startswith(f"{tested}."):
        warnings.warn(f"{package} {installed} is installed, and this {adapter} was tested with {tested}", stacklevel=3)
