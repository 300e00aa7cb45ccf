"""A case: a fault, the promise under it, and the run that counts; the tests and the table share them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.checker import Account

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
    """A named fault; `run` gets an empty folder and returns the Account. `long` cases take more than a few seconds."""

    name: str
    run: Callable[[Path], Account]
    promise: Promise = Promise()
    long: bool = False
