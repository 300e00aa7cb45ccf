"""The warning of adapters that the other system has another version than they were tested with."""

import warnings
from importlib import metadata


def warn_unless_tested(package: str, tested: str, adapter: str) -> None:
    """Warn the caller's caller if a package is installed, and not of the tested version, such as "2.9" or "2.9.3"."""
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:  # a program may have its own objects of that shape
        return
    if installed != tested and not installed.startswith(f"{tested}."):
        warnings.warn(f"{package} {installed} is installed, and this {adapter} was tested with {tested}", stacklevel=3)
