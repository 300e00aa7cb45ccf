"""What the readers of named mailboxes have handled, as the broker retains it."""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic

from ray_messaging.errors import FrameError
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.wire.signals import Place, decode_places, encode_places

logger = logging.getLogger(__name__)

_PAGE_BYTES = 8192  # brokers may take no more in a packet
_ENVELOPE_BYTES = 1024  # what comes round a page: topic, head
_PLACE_BYTES = 31  # what a place takes beside its sender's name, at most
_MOST_PAGES = 500  # Mosquitto drops what is above 1,000 retained publications for one subscription
_SILENT_S = 86_400.0
_NUMBERS = {str(number) for number in range(_MOST_PAGES)}
_GENERATION = re.compile(r"[1-9][0-9]{0,17}")
_HEAD = 0  # the page that each generation has

_Found = dict[tuple[int, int], bytes]  # by generation and page


@dataclass(slots=True)
class _Page:
    """Places, each with the moment at which it moved last (s); `nbytes` is what they take at most."""

    places: dict[str, tuple[Place, float]] = field(default_factory=dict)
    nbytes: int = 0


class Cursors:
    """Keep and load where a mailbox stands with each sender.

    Senders share pages, each retained on a topic of its own, so that a commit publishes those only in which something
    has moved. A sender is forgotten when it was silent for a day, or with the page that was longest without a move
    where there would be too many.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._pages: OrderedDict[int, _Page] = OrderedDict()  # the one that was longest without a move comes first
        self._page_of: dict[str, int] = {}
        self._generation = 0
        self._filling = 0  # the page that takes new senders
        self._unkept: set[int] = set()  # pages that the broker has otherwise, or should not have
        self._connection = 0  # the one over which the broker had all pages
        self._keeping, self._finding = asyncio.Lock(), asyncio.Lock()
        self._wanted = ""  # the mailbox that is loaded now
        self._found: _Found = {}

    # -- what is there --------------------------------------------------------------------------------------------

    async def load(self, mailbox: str, epoch: int) -> dict[str, Place]:
        """Return up to where the last reader of a mailbox had handled each sender's frames; begin our generation.

        Whatever that reader still says goes to its own generation, which nobody looks at any more.
        """
        self._pages.clear()
        self._page_of.clear()
        self._connection = self._control.connections
        found = await self._find(mailbox)
        last, pages = _last_generation(mailbox, found)
        self._generation = max(epoch, last + 1)
        for page, places in sorted(pages.items()):
            for sender, place in places.items():
                known = self._page_of.get(sender)
                if known is None or place.rank > self._pages[known].places[sender][0].rank:
                    self._put(sender, place, page)
        self._unkept.update(self._pages, [_HEAD])
        older = [(self._control.topics.cursor(mailbox, *key), b"") for key in found if key[0] != self._generation]
        await self._say(mailbox, older)
        return {sender: place for page in self._pages.values() for sender, (place, _) in page.places.items()}

    async def _find(self, mailbox: str) -> _Found:
        pages = self._control.topics.cursors(mailbox)
        async with self._finding:
            found: _Found = {}
            self._wanted, self._found = mailbox, found
            try:
                await self._control.listen([pages])
                await self._control.insist(self._control.barrier)
                await self._control.unlisten([pages])
            finally:
                self._wanted, self._found = "", {}
        return found

    def on_cursor(self, name: str, payload: bytes, _retained: bool) -> None:  # noqa: FBT001 - a handler
        """Take a page."""
        mailbox, _, key = name.partition("/")
        generation, _, page = key.partition("/")
        if mailbox == self._wanted and _GENERATION.fullmatch(generation) and page in _NUMBERS and payload:
            self._found[int(generation), int(page)] = payload

    async def clear(self, mailbox: str) -> None:
        """Take out what is kept of a mailbox."""
        topics = self._control.topics
        await self._control.insist_say(*((topics.cursor(mailbox, *key), b"") for key in await self._find(mailbox)))

    # -- what has moved -------------------------------------------------------------------------------------------

    async def keep(self, mailbox: str, moved: Mapping[str, Place]) -> None:
        """Keep how far we are; return when whoever has taken the mailbox over before that has been heard.

        What could not be kept is kept the next time, together with what has moved then.
        """
        for sender, place in moved.items():
            self._put(sender, place, self._page_of.get(sender))
        async with self._keeping:
            connection = self._control.connections
            if connection != self._connection:  # the broker may have lost all since
                self._unkept.update(self._pages, [_HEAD])
            self._sweep()
            await self._say(mailbox)
            self._connection = connection

    async def _say(self, mailbox: str, also: Sequence[tuple[str, bytes]] = ()) -> None:
        unkept, self._unkept = self._unkept, set()
        topics = self._control.topics
        pages = sorted(unkept, reverse=True)  # the head comes last: where it is, all are
        try:
            said = [(topics.cursor(mailbox, self._generation, page), self._encoded(page)) for page in pages]
            await self._control.insist_say(*said, *also)
        except BaseException:
            self._unkept |= unkept
            raise

    def _encoded(self, number: int) -> bytes:
        page = self._pages.get(number, _Page() if number == _HEAD else None)
        return b"" if page is None else encode_places({sender: place for sender, (place, _) in page.places.items()})

    def _put(self, sender: str, place: Place, number: int | None) -> None:
        """Put a place into a page (None: one with room)."""
        known = self._page_of.get(sender)
        if number is None:
            number = self._page_with_room(len(sender) + _PLACE_BYTES)
        elif known is not None and known != number:
            self._take_out(sender)
        page = self._pages.setdefault(number, _Page())
        if sender not in page.places:
            page.nbytes += len(sender) + _PLACE_BYTES
        page.places[sender] = (place, monotonic())
        self._page_of[sender] = number
        self._pages.move_to_end(number)
        self._unkept.add(number)

    def _take_out(self, sender: str) -> None:
        number = self._page_of.pop(sender)
        page = self._pages[number]
        del page.places[sender]
        page.nbytes -= len(sender) + _PLACE_BYTES
        self._unkept.add(number)
        if not page.places:
            del self._pages[number]

    def _page_with_room(self, nbytes: int) -> int:
        told = self._control.link.maximum_packet
        limit = _PAGE_BYTES if told is None else min(_PAGE_BYTES, told - _ENVELOPE_BYTES)
        page = self._pages.get(self._filling)
        if page is not None and page.nbytes + nbytes > limit:
            emptiest = min(self._pages, key=lambda number: self._pages[number].nbytes)
            if self._pages[emptiest].nbytes + nbytes <= limit // 2:
                self._filling = emptiest
            else:
                if len(self._pages) >= _MOST_PAGES:
                    self._forget(next(iter(self._pages)))
                self._filling = next(number for number in range(_MOST_PAGES) if number not in self._pages)
        return self._filling

    # -- who is silent --------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Forget who was silent for long, where we write anyway and where nothing has moved for longest.

        Until then it is needed: a sender that was cut sends again what it was not told is handled.
        """
        end = monotonic() - _SILENT_S
        for number in [*self._unkept, *islice(self._pages, 1)]:
            page = self._pages.get(number)
            if page is not None:
                for sender in [name for name, (place, moved) in page.places.items() if moved < end and not place.row]:
                    self._take_out(sender)

    def _forget(self, number: int) -> None:
        for sender in list(self._pages[number].places):
            self._take_out(sender)


def _last_generation(mailbox: str, found: _Found) -> tuple[int, dict[int, dict[str, Place]]]:
    """Return the newest generation that was published whole, and its pages; 0: there is none."""
    for generation in sorted({generation for generation, page in found if page == _HEAD}, reverse=True):
        head = _read(mailbox, found[generation, _HEAD])
        if head is not None:
            others = {page: found[of, page] for of, page in found if of == generation and page != _HEAD}
            return generation, {_HEAD: head} | {page: _read(mailbox, others[page]) or {} for page in others}
    return 0, {}


def _read(mailbox: str, payload: bytes) -> dict[str, Place] | None:
    try:
        return decode_places(payload)
    except FrameError as error:
        logger.error(  # noqa: TRY400 - no bug
            "a page of the cursor of mailbox %s cannot be read, messages may come again: %.1000s", mailbox, error
        )
        return None
