"""Which subscriptions to make so that a broker sends each message once."""

from collections.abc import Iterable, Iterator


def cover(exact: Iterable[str], filters: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return which topics and filters to subscribe to: those that none of the other filters covers.

    A broker may send a message once for each of a client's subscriptions that match. Each is returned once, in order.
    """
    wanted = {_levels(text): text for text in filters}
    tree = _Node()
    for levels in wanted:
        tree.add(levels)
    kept = [text for levels, text in wanted.items() if all(found == levels for found in tree.covering(levels))]
    alone = [topic for topic in dict.fromkeys(exact) if not (wanted and any(tree.covering(tuple(topic.split("/")))))]
    return alone, kept


def _levels(text: str) -> tuple[str, ...]:
    return ("+", "#") if text == "#" else tuple(text.split("/"))  # they match the same


class _Node:
    """Be a tree of filters, level by level."""

    __slots__ = ("below", "end")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.end: tuple[str, ...] | None = None

    def add(self, levels: tuple[str, ...]) -> None:
        node = self
        for level in levels:
            node = node.below.setdefault(level, _Node())
        node.end = levels

    def covering(self, levels: tuple[str, ...], at: int = 0) -> Iterator[tuple[str, ...]]:
        """Yield the filters that match whatever `levels`, a topic or a filter, matches."""
        deeper = self.below.get("#")
        if deeper is not None and deeper.end is not None:
            yield deeper.end
        if at == len(levels):
            if self.end is not None:
                yield self.end
        elif levels[at] != "#":
            hidden = at == 0 and levels[0][:1] == "$"
            for step in {levels[at]} if hidden else {levels[at], "+"}:
                if step in self.below:
                    yield from self.below[step].covering(levels, at + 1)
