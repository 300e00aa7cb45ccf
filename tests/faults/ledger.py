"""Ledgers of senders and records of receivers: files that survive a kill of their writers.

A message's key is (from_id, to_id, n): the n-th of its pair. A line is written by one system call and never changed.
"""

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ray_messaging.errors import FrameError, OutcomeUnknown

Key = tuple[Any, Any, int]

# A send begins as pending, and ends in one of these.
LETTERS = {"d": "delivered", "b": "blocked", "p": "published", "n": "undeliverable", "r": "refused", "?": "unknown"}
_LETTER_OF = {fate: letter for letter, fate in LETTERS.items()}

_encode = msgspec.json.encode
_decode = msgspec.json.decode


class _Lines:
    """An append-only file; a successor may open it again."""

    def __init__(self, path):
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *what):
        os.write(self._file, _encode(what) + b"\n")

    def close(self):
        os.close(self._file)


def read_lines(path):
    """Return the lines of a file; one that its writer's end cut off is left out."""
    data = Path(path).read_bytes() if Path(path).exists() else b""
    return [_decode(line) for line in data.split(b"\n")[:-1]]


class Growing:
    """Count over the lines of a file that grows, each of them once: a test asks again and again."""

    def __init__(self, path):
        self._path, self._offset = Path(path), 0
        self.settled = self.delivered = self.fetched = 0
        self.errors = []

    def read(self):
        """Read the new lines; return itself."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in map(_decode, whole.splitlines()):
                self._count(line)
        return self

    def _count(self, line):
        if line[0] == "fetched":
            self.fetched += len(line[3])
        elif line[0] == "settle":
            self.settled += len(line[3])
            self.delivered += line[3].count(_LETTER_OF["delivered"])
            self.errors += [line[4]] if line[4] else []


class Ledger(_Lines):
    """Keep a sender's ledger: `begin` before a send, `settle` when its receipts are there."""

    def __init__(self, path):
        super().__init__(path)
        begun = [line for line in read_lines(path) if line[0] == "begin"]
        self._calls = len(begun)
        self.next = {}  # of each pair, the number that comes next
        for line in begun:
            for from_id, to_id, n in line[3]:
                self.next[from_id, to_id] = n + 1

    def number(self, from_id, to_id):
        """Return the key of a pair's next message."""
        n = self.next.get((from_id, to_id), 0)
        self.next[from_id, to_id] = n + 1
        return from_id, to_id, n

    def begin(self, keys):
        """Write the messages of a call before it is made; return its number."""
        self._calls += 1
        self.write("begin", self._calls, time.time(), keys)
        return self._calls

    def settle(self, call, fates, why=""):
        """Write the fates of a call's messages."""
        self.write("settle", call, time.time(), "".join(_LETTER_OF[str(fate)] for fate in fates), why)


class Send(NamedTuple):
    """One message of a ledger; a fate of "pending" was never heard of again."""

    key: Key
    fate: str
    begun_at: float
    settled_at: float | None
    why: str


def read_ledger(path):
    """Return all messages of a ledger, in the order in which they were sent."""
    begun, settled = {}, {}
    for line in read_lines(path):
        if line[0] == "begin":
            begun[line[1]] = line
        else:
            settled[line[1]] = line
    found = []
    for call, (_, _, begun_at, keys) in begun.items():
        _, _, settled_at, letters, why = settled.get(call, (None, None, None, "", ""))
        for at, key in enumerate(keys):
            fate = LETTERS[letters[at]] if at < len(letters) else "pending"
            found.append(Send(tuple(key), fate, begun_at, settled_at, why))
    return found


def fates_after(error, count):
    """Return the fates of a call's messages when it raised `error` (a MessagingError, or CancelledError).

    Refused says that they certainly do not arrive; OutcomeUnknown and a cancelled call leave it open.
    """
    otherwise = "unknown" if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception) else "refused"
    receipts = getattr(error, "receipts", None) or [None] * count
    return [otherwise if receipt is None else receipt.fate for receipt in receipts]


class Inbox(_Lines):
    """Record of a receiver; opening it begins an incarnation."""

    def __init__(self, path, incarnation=""):
        super().__init__(path)
        self.incarnation = incarnation or f"{os.getpid()}-{time.monotonic_ns()}"
        self.write("open", self.incarnation, time.time())

    def take(self, messages):
        """Note that a fetch returned: the previous messages are committed, and these are in hand."""
        self.committed()
        if len(messages):
            self.fetched([key_of(message) for message in messages])

    def fetched(self, keys):
        """Note messages that were handed out; a key of None is no message of ours."""
        self.write("fetched", self.incarnation, time.time(), keys)

    def committed(self):
        """Note that all that was handed out so far is committed."""
        self.write("committed", self.incarnation, time.time())

    def fenced(self):
        """Note that a successor has the messages, also those that were handed out here and are not committed."""
        self.write("fenced", self.incarnation, time.time())

    def note(self, text):
        """Note something else, as an error that was met."""
        self.write("note", self.incarnation, time.time(), text)


def key_of(message):
    """Return the key of a received message; None where it is not one of a workload."""
    try:
        return message.from_id, message.to_id, message.payload["n"]
    except (FrameError, KeyError, TypeError):
        return None
