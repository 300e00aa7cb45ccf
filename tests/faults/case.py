"""A case: a fault, the promise under it, and the run that counts; the tests and the table share them."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from faults.checker import Account

failing_over: ContextVar[str | None] = ContextVar("failing_over", default=None)  # what replaces a killed server
SERVICES = ("cluster", "Sentinel")
ALL = "nothing lost, nothing twice, in order"


@dataclass(frozen=True)
class Promise:
    """The promise for a fault; `but` names the flaws that it allows: lost, duplicates, order_breaks..."""

    text: str = ALL
    but: frozenset[str] = frozenset()

    def broken(self, account: Account) -> dict[str, int]:
        """Return the flaws that break it, counted; empty where it held."""
        return {flaw: count for flaw, count in account.flaws.items() if flaw not in self.but}


def weaker(text: str, *but: str) -> Promise:
    """Promise less, in so many words."""
    return Promise(text, frozenset(but))


@dataclass(frozen=True)
class Case:
    """A named fault; `run` gets an empty folder and returns the Account. `long` cases take more than a few seconds.

    With `replicas` it can have a cluster or a primary with Sentinels in place of its server: there another server takes
    the place of one that is killed.
    """

    name: str
    run: Callable[[Path], Account]
    promise: Promise = Promise()
    long: bool = False
    replicas: bool = False

    def on_services(self) -> list["Case"]:
        """Return the same on a cluster, and on a primary with Sentinels."""
        return [
            replace(self, name=f"{self.name}, {kind}", run=partial(_run_with, failing_over, kind, self.run))
            for kind in SERVICES
            if self.replicas
        ]


def _run_with(layout: ContextVar[Any], value: object, run: Callable[[Path], Account], folder: Path) -> Account:
    token = layout.set(value)
    try:
        return run(folder)
    finally:
        layout.reset(token)
