"""A case: a fault, what is promised under it, and the run that counts; tests and the benchmark share them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.checker import Account

ALL = "nothing lost, nothing twice, in order"


@dataclass(frozen=True)
class Promise:
    """What DESIGN promises for a fault; `but` names the flaws that it leaves open: lost, duplicates, order_breaks..."""

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
    """Name a fault; `run` gets an empty folder and returns the Account. `long` ones take more than a few seconds."""

    name: str
    run: Callable[[Path], Account]
    promise: Promise = Promise()
    long: bool = False
