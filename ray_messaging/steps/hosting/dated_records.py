"""The records of mailboxes as they count in one step."""

from collections.abc import Iterable

from ray_messaging.addressing.directory import Record
from ray_messaging.addressing.host_dates import NO_DATES, HostDates


class DatedRecords:
    """The newest records of mailboxes, some with changes of hosts that count from a later step."""

    def __init__(self) -> None:
        self._dates = NO_DATES
        self._step = -1  # as of which the records were returned
        self._early: dict[str, Record] = {}  # records that have such a change

    def take(self, changed: Iterable[Record], dates: HostDates, step: int) -> list[Record]:
        """Take over records that have changed; return all that are new in a step, as they count in it."""
        newest = self._early | {record.mailbox: record for record in changed}
        self._dates, self._step = dates, step
        self._early = {name: record for name, record in newest.items() if self._next(record) is not None}
        return [record.at(step, dates) for record in newest.values()]

    def due(self, step: int) -> bool:
        """Tell whether some change counts from a step on that did not count before."""
        return any((first := self._next(record)) is not None and first <= step for record in self._early.values())

    def _next(self, record: Record) -> int | None:
        """Return the first step with which a record changes again."""
        later = [since for change in record.changes if (since := self._dates.since(change.version)) > self._step]
        return min(later, default=None)
