"""The class `MessageIdColumn`: message ids, stored as a few distinct texts and a number for each row."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

NO_NUMBER = -1
_MOST_DIGITS = 18  # every number with at most this many digits fits int64


class MessageIdColumn(msgspec.Struct, eq=False):
    """A column of n message ids, each of which may be None.

    The id "a-3-7" is stored as "a-3-" and 7, so that ids of one sender share their text. Row i has the text
    `texts[places[i]]` and the number `numbers[i]`. `places` is uint32; if it is None, all rows have the first text.
    `numbers` is int64; if a number is NO_NUMBER, the text is the whole id. An empty text without a number means None.
    """

    numbers: NDArray[np.int64]
    texts: tuple[str, ...] = ("",)
    places: NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, ids: Sequence[str | None]) -> "MessageIdColumn":
        """Build a column from ids."""
        if len(ids) == 1:  # for a single id, this takes a quarter of the time of the code below
            text, number = _split(ids[0] or "")
            return cls(np.array((number,), np.int64), (text,))
        table: dict[str, int] = {}
        numbers, places = np.empty(len(ids), np.int64), np.empty(len(ids), np.uint32)
        for row, message_id in enumerate(ids):
            text, numbers[row] = _split(message_id or "")
            places[row] = table.setdefault(text, len(table))
        return cls(numbers, tuple(table) or ("",), places if len(table) > 1 else None)

    @classmethod
    def none(cls, rows: int) -> "MessageIdColumn":
        """Build a column of `rows` ids that are all None."""
        return cls(np.full(rows, NO_NUMBER, np.int64))

    @classmethod
    def joined(cls, columns: Sequence["MessageIdColumn"]) -> "MessageIdColumn":
        """Return a column with the ids of several columns, one column after the other."""
        table: dict[str, int] = {}
        places = []
        for column in columns:
            own = np.array([table.setdefault(text, len(table)) for text in column.texts], np.uint32)
            places.append(own[column.all_places()])
        numbers = np.concatenate([column.numbers for column in columns])
        return cls(numbers, tuple(table), np.concatenate(places) if len(table) > 1 else None)

    def all_places(self) -> NDArray[np.uint32]:
        """Return the index of each row's text."""
        return np.zeros(len(self), np.uint32) if self.places is None else self.places

    def take(self, rows: NDArray[np.intp]) -> "MessageIdColumn":
        """Return a column with the ids of the given rows."""
        numbers, places = self.numbers[rows], None if self.places is None else self.places[rows]
        if places is None or len(rows) >= len(self.texts):
            return MessageIdColumn(numbers, self.texts, places)
        # All `texts` are encoded with the column, so texts that no row uses are left out.
        used, among = np.unique(places, return_inverse=True)
        texts = tuple(self.texts[place] for place in used) or ("",)
        return MessageIdColumn(numbers, texts, among.astype(np.uint32))

    @property
    def width(self) -> int:
        """Return how many bytes an id takes at most when the column is encoded."""
        text = max(len(text.encode()) for text in self.texts)
        return text + self.numbers.itemsize + (0 if self.places is None else self.places.itemsize)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> str | None:
        text, number = self.texts[0 if self.places is None else self.places[row]], int(self.numbers[row])
        return (text if number == NO_NUMBER else f"{text}{number}") or None

    def tolist(self) -> list[str | None]:
        """Return the ids as Python objects."""
        return [self[row] for row in range(len(self))]


def _split(message_id: str) -> tuple[str, int]:
    """Split an id into a text and the number after its last hyphen; return the id and NO_NUMBER if there is no number.

    A number with leading zeros, such as "007", stays in the text, because 7 would not give back the same id.
    """
    head, hyphen, tail = message_id.rpartition("-")
    if hyphen and tail.isascii() and tail.isdigit() and len(tail) <= _MOST_DIGITS and (tail[0] != "0" or tail == "0"):
        return head + hyphen, int(tail)
    return message_id, NO_NUMBER
