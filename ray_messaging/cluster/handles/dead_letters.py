"""The dead letters of an experiment, which can be read, requeued and dropped."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ray_messaging.addressing.channels import check_name
from ray_messaging.cluster.handles.own_loop import run_in_own_loop
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame, utc_times
from ray_messaging.common.texts import utc_time
from ray_messaging.config import MessagingConfig, ServerConfig
from ray_messaging.errors import ConfigError, FrameError, UnknownName
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.batch import Batch
from ray_messaging.transports.backend import backend_of
from ray_messaging.transports.cursors import order
from ray_messaging.transports.dead_letter_store import PAGE, DeadFrame, RedisDeadLetters, unhandled
from ray_messaging.transports.requeueing import Requeueing, readable

T = TypeVar("T")

_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
_DROPPED_AT_ONCE = 500
# `DeadLetters` uses this limit in place of MessagingConfig.dead_bytes. When letters are read, expired frames become
# dead letters, and under the usual limit older letters would be dropped for them.
_NO_LIMIT = 2**62


@dataclass(frozen=True)
class DeadLetter:
    """Messages of one mailbox that cannot be delivered, and the reason.

    `frame` has the encoded messages. `at` is the time at which they became a dead letter, in unix seconds.
    """

    id: str
    mailbox: str
    reason: str
    at: float
    frame: bytes
    row: int  # the messages in the rows of `frame` before this row were handled
    exp_id: str
    acked: str = ""  # further rows that were handled, as "low-high,..."

    @cached_property
    def _batch(self) -> Batch | FrameError:
        try:
            return readable(self.frame)
        except FrameError as error:
            return error

    @property
    def readable(self) -> bool:
        """Return whether the messages of this letter can be decoded, which `requeue` needs."""
        return isinstance(self._batch, Batch)

    @property
    def rows(self) -> int:
        """Return the number of unhandled messages in this letter, or 0 if the letter cannot be decoded."""
        return len(unhandled(self.row, self.acked, len(self._batch))) if isinstance(self._batch, Batch) else 0

    @property
    def messages(self) -> Messages:
        """Return the unhandled messages of this letter; raise FrameError if the letter cannot be decoded."""
        batch = self._batch
        if isinstance(batch, FrameError):
            raise FrameError(f"dead letter {self.id} cannot be decoded: {batch}; its bytes are in .frame")
        rows = unhandled(self.row, self.acked, len(batch))
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        return Messages(self.exp_id, [Slice(batch, int(run[0]), int(run[-1]) + 1) for run in runs if len(run)])

    def __repr__(self) -> str:
        what = f"{self.rows:,} messages" if self.readable else "not readable"
        return f"DeadLetter({self.id!r}, mailbox {self.mailbox!r}, {what}, {self.reason!r})"


Letters = list[DeadLetter]  # an alias, because `DeadLetters` has a method `list`, which hides the built-in


def _columns(letters: Iterable[DeadLetter]) -> dict[str, list[Any]]:
    rows = [(one.id, one.mailbox, one.reason, one.at, one.rows, len(one.frame), one.readable) for one in letters]
    names = ("id", "mailbox", "reason", "at", "rows", "bytes", "readable")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


class Requeues(NamedTuple):
    """Outcome of `requeue`: how many letters were removed, and how many messages wait in a mailbox again.

    `left` maps the id of each letter that stays, whole or in part, to the reason.
    """

    letters: int
    messages: int
    left: dict[str, str]


class DeadLetters:
    """The dead letters of one experiment: messages that no mailbox could deliver.

    The calls block: use them in a script or a task, and not in async code.

    Iteration yields the letters, oldest first, and reads them page by page.
    """

    def __init__(self, redis: ServerConfig, exp_id: str, settings: MessagingConfig | None = None) -> None:
        self.exp_id = check_name("exp_id", exp_id)
        self._redis = redis
        self._settings = settings or MessagingConfig()

    # -- reading --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.stats()["letters"]

    def __bool__(self) -> bool:
        return True  # otherwise `if messaging.dead_letters` would ask the server for the length

    def __iter__(self) -> Iterator[DeadLetter]:
        after = ""
        while page := self._page(after, PAGE):
            yield from page
            after = page[-1].id

    def list(self, *, limit: int = 100, after: str | None = None, mailbox: str | None = None) -> Letters:
        """Return at most `limit` dead letters of one mailbox, or of all mailboxes if `mailbox` is None.

        With `after`, the id of a letter, return only letters that come after that letter.
        """
        found: Letters = []
        last = "" if after is None else _checked(after)
        while len(found) < limit and (page := self._page(last, PAGE if mailbox else limit - len(found))):
            found += [letter for letter in page if mailbox in {None, letter.mailbox}]
            last = page[-1].id
        return found[:limit]

    def get(self, letter: str) -> DeadLetter:
        """Return one letter; raise UnknownName if none has this id."""
        found = self._run(lambda store: store.get(_checked(letter)))
        if found is None:
            raise UnknownName(
                f"there is no dead letter {letter!r}: it was requeued or dropped, or its id is wrong",
                kind="dead letter",
                value=letter,
            )
        return self._letter(found)

    def check(self) -> "DeadLetters":
        """Return this object if the server has data of the experiment; raise UnknownName otherwise."""
        if not self._run(lambda store: store.known()):
            raise UnknownName(
                f"the server has no experiment {self.exp_id!r}: check the name, and the db of the server's URL",
                kind="experiment",
                value=self.exp_id,
            )
        return self

    def stats(self) -> dict[str, int]:
        """Return the numbers and bytes of stored and of dropped letters: letters, bytes, dropped, dropped_bytes.

        If the letters have more than `MessagingConfig.dead_bytes` bytes, the oldest ones are dropped.
        """
        facts = self._run(lambda store: store.facts())
        return {
            "letters": facts.letters,
            "bytes": facts.nbytes,
            "dropped": facts.dropped,
            "dropped_bytes": facts.dropped_bytes,
        }

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame of all letters: id, mailbox, reason, at (UTC), rows, bytes, readable."""
        columns = _columns(self)
        return data_frame(columns | {"at": utc_times(columns["at"]).to_pandas()})

    def _repr_html_(self) -> str:
        columns = _columns(self.list(limit=SHOWN))
        total = len(self)
        title = f"{type(self).__name__}({self.exp_id!r}: {total:,} letters)"
        return html_table(title, columns | {"at": [utc_time(at) for at in columns["at"]]}, total)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "dead letters cannot be sent to another process, because they contain the server's password: send the "
            "Messaging, and get its dead letters in that process"
        )

    # -- changing -------------------------------------------------------------------------------------------------

    def requeue(
        self,
        ids: "str | Iterable[str] | None" = None,
        *,
        mailbox: str | None = None,
        everything: bool = False,
    ) -> Requeues:
        """Put the messages of dead letters back into the mailboxes that listen for these messages now.

        Each message keeps its id, and goes back at most once.

        Pass exactly one of ids, mailbox and everything. Letters that cannot go back stay; `left` in the result says
        why.

        Raises: ConfigError unless exactly one of ids, mailbox and everything is given; ConnectionFailed if the server
        does not answer; MailboxFull if the server's memory is full.
        """
        chosen = _chosen(ids, mailbox, everything=everything)

        async def run(store: RedisDeadLetters) -> Requeues:
            requeueing = Requeueing(store, self.exp_id)
            letters = messages = 0
            left: dict[str, str] = {}
            # The mailboxes that are full. Later letters to these mailboxes are left, too, so that messages keep their
            # order.
            waiting: set[str] = set()
            async for name, letter in _letters(store, chosen, mailbox):
                if letter is None:
                    left[name] = "there is no such dead letter"
                elif letter.mailbox in waiting:
                    left[name] = "there was no room for an earlier letter of the same mailbox"
                else:
                    outcome = await requeueing.requeue(letter)
                    messages += outcome.messages
                    letters += not outcome.why
                    if outcome.why:
                        left[name] = outcome.why
                    if outcome.full:
                        waiting.add(letter.mailbox)
            return Requeues(letters, messages, left)

        return self._run(run)

    def drop(
        self,
        ids: "str | Iterable[str] | None" = None,
        *,
        mailbox: str | None = None,
        everything: bool = False,
    ) -> int:
        """Delete letters, and return their number. `everything` also resets the counts of dropped letters.

        Raises: ConfigError unless exactly one of ids, mailbox and everything is given.
        """
        chosen = _chosen(ids, mailbox, everything=everything)

        async def run(store: RedisDeadLetters) -> int:
            if chosen is not None:
                return await store.drop(chosen)
            dropped, gathered = 0, list[str]()
            async for name, _ in _letters(store, chosen, mailbox):
                gathered.append(name)
                if len(gathered) == _DROPPED_AT_ONCE:
                    dropped += await store.drop(gathered)
                    gathered = []
            dropped += await store.drop(gathered)
            if everything:
                await store.count_anew()
            return dropped

        return self._run(run)

    # -- the store ------------------------------------------------------------------------------------------------

    def _page(self, after: str, count: int) -> Letters:
        return [self._letter(found) for found in self._run(lambda store: store.page(after, count))]

    def _letter(self, found: DeadFrame) -> DeadLetter:
        return DeadLetter(
            found.id, found.mailbox, found.reason, found.at, found.frame, found.row, self.exp_id, found.acked
        )

    def _run(self, work: "Callable[[RedisDeadLetters], Awaitable[T]]") -> T:
        """Run an operation on the store, and wait for its result. A running event loop is blocked meanwhile."""

        async def run() -> T:
            unlimited = self._settings.model_copy(update={"dead_bytes": _NO_LIMIT})
            stores = backend_of(self._redis).stores(self.exp_id, unlimited)
            await stores.transport.connect()
            try:
                return await work(stores.dead_letters)
            finally:
                await stores.transport.close()

        return run_in_own_loop(run)


def _chosen(ids: "str | Iterable[str] | None", mailbox: str | None, *, everything: bool) -> list[str] | None:
    """Return the ids of the chosen letters, or None if letters are not chosen by ids.

    Raises: ConfigError unless exactly one of the three arguments is given.
    """
    if (ids is not None) + (mailbox is not None) + everything != 1:
        raise ConfigError("say which dead letters: pass exactly one of ids, mailbox='name' and everything=True")
    return None if ids is None else [_checked(one) for one in dict.fromkeys([ids] if isinstance(ids, str) else ids)]


async def _letters(
    store: RedisDeadLetters, ids: list[str] | None, mailbox: str | None
) -> AsyncIterator[tuple[str, DeadFrame | None]]:
    """Yield (id, letter) for each of `ids`. The letter is None if no letter has the id.

    If `ids` is None, yield all letters of `mailbox`; if `mailbox` is None too, yield the letters of all mailboxes.
    """
    for name in ids or ():
        yield name, await store.get(name)
    # If a letter is requeued only in part, its other messages become a new letter after `last`, and are not read again.
    after, last = "", await store.last()
    while ids is None and last and after != last and (page := await store.page(after, PAGE)):
        after = page[-1].id
        for letter in page:
            if order(letter.id) > order(last):
                return
            if mailbox in {None, letter.mailbox}:
                yield letter.id, letter


def _checked(letter: str) -> str:
    found = _ID.fullmatch(letter) if isinstance(letter, str) else None
    if found is None or max(map(int, found.groups())) >= 2**64:
        raise ConfigError(f"{letter!r} is not the id of a dead letter: such ids look like 1700000000000-0")
    return letter
