"""Durable cursors of named mailboxes, as the broker retains them."""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic

from ray_messaging.errors import FrameError
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.packets import ENVELOPE_BYTES
from ray_messaging.mqtt.wire.messages import Position, decode_positions, encode_positions

logger = logging.getLogger(__name__)

_PAGE_BYTES = 8192  # brokers may take no more in a packet
_POSITION_BYTES = 31  # of a position beside its sender's name, at most
_MAX_PAGES = 500  # Mosquitto drops retained messages above 1,000 per subscription
_SILENT_S = 86_400.0
_NUMBERS = {str(number) for number in range(_MAX_PAGES)}
_GENERATION = re.compile(r"[1-9][0-9]{0,17}")
_HEAD = 0  # the page that each generation has

_Found = dict[tuple[int, int], bytes]  # by generation and page


@dataclass(slots=True)
class _Page:
    """Positions, each with the time of its last move (s); `nbytes` is an upper bound of their size."""

    positions: dict[str, tuple[Position, float]] = field(default_factory=dict)
    nbytes: int = 0


class CursorStore:
    """Durable cursor of a mailbox: a position for each of its senders.

    Senders share pages, each retained on its own topic, so that a commit publishes only the pages that changed. A
    sender is forgotten after a day without a move, or together with the page that moved longest ago if there would be
    too many pages.
    """

    def __init__(self, control: ControlLink) -> None:
        self._control = control
        self._pages: OrderedDict[int, _Page] = OrderedDict()  # the page that moved longest ago comes first
        self._page_of: dict[str, int] = {}
        self._generation = 0
        self._filling = 0  # the page for new senders
        self._dirty: set[int] = set()  # pages that differ at the broker, or should not be there
        self._connection = 0  # the one over which the broker had all pages
        self._keeping, self._finding = asyncio.Lock(), asyncio.Lock()
        self._wanted = ""  # the mailbox that is being loaded
        self._found: _Found = {}

    # -- loading --------------------------------------------------------------------------------------------------

    async def load(self, mailbox: str, epoch: int) -> dict[str, Position]:
        """Return the positions of a mailbox's last reader, and begin our generation.

        That reader may still write, but to its own generation, which is not read any more.
        """
        self._pages.clear()
        self._page_of.clear()
        self._connection = self._control.connections
        found = await self._find(mailbox)
        last, pages = _last_generation(mailbox, found)
        self._generation = max(epoch, last + 1)
        for page, positions in sorted(pages.items()):
            for sender, position in positions.items():
                known = self._page_of.get(sender)
                if known is None or position.rank > self._pages[known].positions[sender][0].rank:
                    self._put(sender, position, page)
        self._dirty.update(self._pages, [_HEAD])
        older = [(self._control.topics.cursor(mailbox, *key), b"") for key in found if key[0] != self._generation]
        await self._write(mailbox, older)
        return {sender: position for page in self._pages.values() for sender, (position, _) in page.positions.items()}

    async def _find(self, mailbox: str) -> _Found:
        pages = self._control.topics.cursors(mailbox)
        async with self._finding:
            found: _Found = {}
            self._wanted, self._found = mailbox, found
            try:
                await self._control.subscribe([pages])
                await self._control.retry(self._control.barrier)
                await self._control.unsubscribe([pages])
            finally:
                self._wanted, self._found = "", {}
        return found

    def on_page(self, name: str, payload: bytes) -> None:
        """Take a retained page."""
        mailbox, _, key = name.partition("/")
        generation, _, page = key.partition("/")
        if mailbox == self._wanted and _GENERATION.fullmatch(generation) and page in _NUMBERS and payload:
            self._found[int(generation), int(page)] = payload

    async def clear(self, mailbox: str) -> None:
        """Remove a mailbox's cursor."""
        topics = self._control.topics
        await self._control.retain(*((topics.cursor(mailbox, *key), b"") for key in await self._find(mailbox)))

    # -- storing --------------------------------------------------------------------------------------------------

    async def keep(self, mailbox: str, moved: Mapping[str, Position]) -> None:
        """Store positions; return after any earlier takeover of the mailbox has come to us.

        A position that could not be stored is stored with the next call.
        """
        for sender, position in moved.items():
            self._put(sender, position, self._page_of.get(sender))
        async with self._keeping:
            connection = self._control.connections
            if connection != self._connection:  # the broker may have lost all pages since
                self._dirty.update(self._pages, [_HEAD])
            self._forget_silent()
            await self._write(mailbox)
            self._connection = connection

    async def _write(self, mailbox: str, also: Sequence[tuple[str, bytes]] = ()) -> None:
        dirty, self._dirty = self._dirty, set()
        topics = self._control.topics
        pages = sorted(dirty, reverse=True)  # the head last: a generation with a head is complete
        try:
            messages = [(topics.cursor(mailbox, self._generation, page), self._encoded(page)) for page in pages]
            await self._control.retain(*messages, *also)
        except BaseException:
            self._dirty |= dirty
            raise

    def _encoded(self, number: int) -> bytes:
        page = self._pages.get(number, _Page() if number == _HEAD else None)
        if page is None:
            return b""
        return encode_positions({sender: position for sender, (position, _) in page.positions.items()})

    def _put(self, sender: str, position: Position, number: int | None) -> None:
        """Put a position on a page (None: one with room)."""
        known = self._page_of.get(sender)
        if number is None:
            number = self._page_with_room(len(sender) + _POSITION_BYTES)
        elif known is not None and known != number:
            self._take_out(sender)
        page = self._pages.setdefault(number, _Page())
        if sender not in page.positions:
            page.nbytes += len(sender) + _POSITION_BYTES
        page.positions[sender] = (position, monotonic())
        self._page_of[sender] = number
        self._pages.move_to_end(number)
        self._dirty.add(number)

    def _take_out(self, sender: str) -> None:
        number = self._page_of.pop(sender)
        page = self._pages[number]
        del page.positions[sender]
        page.nbytes -= len(sender) + _POSITION_BYTES
        self._dirty.add(number)
        if not page.positions:
            del self._pages[number]

    def _page_with_room(self, nbytes: int) -> int:
        packet = self._control.link.maximum_packet
        limit = _PAGE_BYTES if packet is None else min(_PAGE_BYTES, packet - ENVELOPE_BYTES)
        page = self._pages.get(self._filling)
        if page is not None and page.nbytes + nbytes > limit:
            emptiest = min(self._pages, key=lambda number: self._pages[number].nbytes)
            if self._pages[emptiest].nbytes + nbytes <= limit // 2:
                self._filling = emptiest
            else:
                if len(self._pages) >= _MAX_PAGES:
                    oldest = next(iter(self._pages.values()))
                    for sender in list(oldest.positions):
                        self._take_out(sender)
                self._filling = next(number for number in range(_MAX_PAGES) if number not in self._pages)
        return self._filling

    def _forget_silent(self) -> None:
        """Forget senders that were silent for long, on the dirty pages and the one that moved longest ago.

        Earlier it would be wrong: a sender that was cut sends all frames again that were not confirmed to it.
        """
        end = monotonic() - _SILENT_S
        for number in [*self._dirty, *islice(self._pages, 1)]:
            page = self._pages.get(number)
            if page is not None:
                silent = [name for name, (place, moved) in page.positions.items() if moved < end and not place.row]
                for sender in silent:
                    self._take_out(sender)


def _last_generation(mailbox: str, found: _Found) -> tuple[int, dict[int, dict[str, Position]]]:
    """Return the newest complete generation and its pages; 0: there is none."""
    for generation in sorted({generation for generation, page in found if page == _HEAD}, reverse=True):
        head = _read(mailbox, found[generation, _HEAD])
        if head is not None:
            others = {page: found[of, page] for of, page in found if of == generation and page != _HEAD}
            return generation, {_HEAD: head} | {page: _read(mailbox, others[page]) or {} for page in others}
    return 0, {}


def _read(mailbox: str, payload: bytes) -> dict[str, Position] | None:
    try:
        return decode_positions(payload)
    except FrameError as error:
        logger.error(  # noqa: TRY400 - no bug
            "a page of the cursor of mailbox %s cannot be read, messages may come again: %.1000s", mailbox, error
        )
        return None
