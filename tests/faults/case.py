"""A case: a fault, the promise under it, and the run that counts; the tests and the table share them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from faults.checker import Account

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
    """A named fault; `run` gets an empty folder and returns the Account. `quick` cases take a few seconds.

    With `replicas` it can have a cluster or a primary with Sentinels in place of its server (`on`): there another
    server takes the place of one that is killed.
    """

    name: str
    run: Callable[..., Account]
    promise: Promise = Promise()
    quick: bool = False
    replicas: bool = False

    def on_services(self) -> list["Case"]:
        """Return the same on a cluster, and on a primary with Sentinels."""
        return [
            replace(self, name=f"{self.name}, {kind}", run=partial(self.run, on=kind), quick=False)
            for kind in SERVICES
            if self.replicas
        ]
