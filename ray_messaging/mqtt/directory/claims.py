"""Our card in the directory: made, claimed against rivals, said again when a broker has lost it."""

import math
import secrets

from msgspec.structs import replace

from ray_messaging.addressing.directory import Record, encode_record
from ray_messaging.errors import AlreadyExists
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.directory.registry import Registry
from ray_messaging.mqtt.receiving.mailbox import fenced
from ray_messaging.mqtt.wire.signals import Card, encode_card
from ray_messaging.transports.base import Limits


class Claims:
    """Publish the card of one mailbox.

    A broker has no transaction: whoever claims agents for itself alone publishes a pending card first, which senders do
    not see. When it has come round, all claims that the broker had before it have come, too, and the earliest wins.
    """

    def __init__(self, control: Control, registry: Registry) -> None:
        self.card: Card | None = None  # as the directory should have it
        self.owner = ""
        self.reader = secrets.token_hex(8)
        self._numbers = 0
        self._control = control
        self._registry = registry

    def check_owner(self, mailbox: str, limits: Limits, owner: str) -> None:
        """Raise AlreadyExists where a named mailbox is in the hands of another owner, who is alive."""
        holder = self._registry.owners.get(mailbox, "")
        if owner and holder not in {"", owner}:
            raise AlreadyExists(
                f"mailbox {mailbox!r} is held by {holder!r}, which is alive: choose another name, or close it "
                f"(if it died, wait {limits.lease_s:g} s)",
                kind="group",
                value=mailbox,
                owner=holder,
            )

    def next_epoch(self, mailbox: str) -> int:
        """Return the epoch of a mailbox's next reader."""
        known = (self._registry.entries.get(mailbox), self._registry.pending.get(mailbox))
        return max((entry.card.epoch for entry in known if entry is not None), default=0) + 1

    def make(self, record: Record, epoch: int, owner: str, limits: Limits, *, stamp: str = "") -> Card:
        """Make a card; without a stamp it gets a new one, which asks senders for all that they keep."""
        return Card(
            record=encode_record(record),
            epoch=epoch,
            owner=owner,
            pending=False,
            messages=limits.messages,
            nbytes=limits.nbytes,
            stamp=stamp or secrets.token_hex(4),
            reader=self.reader,
            number=self._next_number(),
            leased=limits.leased,
        )

    def renewed(self, card: Card) -> Card:
        """Return a card that asks senders for all that they keep."""
        return replace(card, stamp=secrets.token_hex(4), number=self._next_number())

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def claim(self, record: Record, card: Card) -> None:
        """Claim a mailbox and its agents; raise AlreadyExists where somebody was earlier, Fenced where one is newer."""
        mailbox = record.mailbox
        before = self._registry.entries.get(mailbox)
        topic = self._control.topics.directory(mailbox)
        # The claim of a process that dies before it is settled must not stay.
        expiry_s = max(1, math.ceil(self._registry.lease_s))
        await self._control.insist_say((topic, encode_card(replace(card, pending=True))), expiry_s=expiry_s)
        entry = self._registry.pending.get(mailbox)
        if entry is None or entry.card.reader != self.reader:
            raise fenced(mailbox, card.epoch)
        taken = self._registry.rival(mailbox, record) if record.exclusive else None
        if taken is not None:
            await self._control.insist_say((topic, b"" if before is None else encode_card(before.card)))
            agent_id, rival = taken
            raise AlreadyExists(
                f"agent {agent_id!r} lives in group {rival!r} already: leave it out of {mailbox!r}, or remove that "
                "group first",
                kind="agent",
                value=agent_id,
                owner=rival,
            )

    async def publish(self, mailbox: str, card: Card, owner: str = "") -> None:
        """Say who listens; raise Fenced where somebody newer does."""
        self.card, self.owner = card, owner
        await self.say(mailbox)
        entry = self._registry.entries.get(mailbox)
        if entry is not None and entry.card.reader != self.reader:
            raise fenced(mailbox, card.epoch)

    async def say(self, mailbox: str) -> None:
        """Publish the card, and who holds the mailbox."""
        if self.card is None:
            return
        said = [(self._control.topics.directory(mailbox), encode_card(self.card))]
        if self.owner:
            said.append((self._control.topics.owner(mailbox), self.owner.encode()))
        await self._control.insist_say(*said)

    async def release(self, mailbox: str) -> None:
        """Let anybody take the mailbox over."""
        if self.owner:
            self.owner = ""
            await self._control.insist_say((self._control.topics.owner(mailbox), b""))

    async def withdraw(self, mailbox: str) -> None:
        """Take the mailbox out of the directory."""
        topics = self._control.topics
        await self._control.insist_say((topics.directory(mailbox), b""), (topics.owner(mailbox), b""))
        self.card, self.owner = None, ""
