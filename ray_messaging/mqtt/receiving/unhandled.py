"""Publications on topics of users that are not handled yet, so that one that a broker repeats is not taken twice."""

from collections import OrderedDict

from ray_messaging.mqtt.connection.packets import Arrival

_NAMES = 10_000
_OWED = 10_000


class Kept:
    """Be a publication, under the newest of its arrivals, until it is handled."""

    __slots__ = ("_arrival", "_keeper", "key")

    def __init__(self, keeper: "UnhandledMessages", key: int, arrival: Arrival) -> None:
        self.key = key
        self._keeper = keeper
        self._arrival: Arrival | None = arrival

    @property
    def over(self) -> bool:
        """Tell whether the broker sends it again, as the connection that it came over has ended."""
        return self._arrival is None or self._arrival.over

    def renew(self, arrival: Arrival) -> None:
        """Wait under a newer arrival; what is handled already needs none."""
        older, self._arrival = (arrival, None) if self._arrival is None else (self._arrival, arrival)
        older.acknowledge()

    def acknowledge(self) -> None:
        """Note that it is handled."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self._keeper.handled(self, owed=arrival.over)
            arrival.acknowledge()


class UnhandledMessages:
    """Find what has come before.

    Messages of our own have names. A foreign client's have none, and two of them may be equal: it is known by its topic
    and payload, when the broker says that it repeats it, and as often as it came over connections that have ended.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, Kept] = OrderedDict()
        self._alike: dict[int, OrderedDict[Kept, None]] = {}  # those whose connections have ended first
        self._owed: OrderedDict[Kept, None] = OrderedDict()  # handled, but the broker could not be told

    def named(self, name: str, arrival: Arrival) -> Kept | None:
        """Keep a publication; None: it came before, and is kept under this arrival now."""
        known = self._names.get(name)
        if known is not None:
            known.renew(arrival)
            return None
        kept = self._names[name] = Kept(self, 0, arrival)
        if len(self._names) > _NAMES:
            self._names.popitem(last=False)
        return kept

    def unnamed(self, arrival: Arrival) -> Kept | None:
        """Keep a publication; None: as `named`."""
        key = hash((arrival.topic, arrival.payload))
        alike = self._alike.get(key)
        if arrival.duplicate and alike:
            known = next(iter(alike))
            if known.over:
                known.renew(arrival)
                if known in self._owed:
                    self._drop(known)
                else:
                    alike.move_to_end(known)
                return None
        kept = Kept(self, key, arrival)
        if arrival.qos:
            self._alike.setdefault(key, OrderedDict())[kept] = None
        return kept

    def handled(self, kept: Kept, *, owed: bool) -> None:
        """Forget a publication, unless the broker still sends it again."""
        if not owed:
            self._drop(kept)
        elif kept in self._alike.get(kept.key, ()):
            self._owed[kept] = None
            if len(self._owed) > _OWED:
                self._drop(next(iter(self._owed)))

    def begin_anew(self) -> None:
        """Expect nothing again."""
        self._alike.clear()
        self._owed.clear()

    def _drop(self, kept: Kept) -> None:
        self._owed.pop(kept, None)
        alike = self._alike.get(kept.key)
        if alike is not None:
            alike.pop(kept, None)
            if not alike:
                del self._alike[kept.key]
