"""A queue of calls that keeps calls with a common prefix together, because a server of a model caches prefixes."""

from bisect import bisect, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefixQueue(Generic[T]):
    """A queue that hands out the items of the lowest step first, and the items of one step in the order of their texts.

    The items of a step are sorted by text. The queue remembers the text of the item that it handed out last. Next, it
    hands out an item with the same text, or else with the next text in the order. After the last text, it begins again
    with the first one. Items with equal texts are handed out in the order in which they were added. No item waits
    forever, because the number of items of a step is limited.
    """

    def __init__(self) -> None:
        self._items: list[tuple[int, str, int, T]] = []  # sorted tuples (step, text, number of the push, item)
        self._pushed = 0
        self._last = ""  # the text of the item that was handed out last

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item for *_, item in self._items)

    def push(self, item: T, step: int, text: str) -> None:
        """Add an item of a step. A step's items are sorted by `text`, so that texts that begin alike come together."""
        insort(self._items, (step, text, self._pushed, item))
        self._pushed += 1

    def pop(self) -> T:
        """Remove and return the next item."""
        lowest = self._items[0][0]
        place = bisect(self._items, (lowest, self._last))  # the first item whose text is `_last` or comes after it
        if place == len(self._items) or self._items[place][0] != lowest:
            place = 0
        _, self._last, _, item = self._items.pop(place)
        return item

    def pop_last(self) -> T:
        """Remove and return an item of the highest step."""
        return self._items.pop()[-1]
