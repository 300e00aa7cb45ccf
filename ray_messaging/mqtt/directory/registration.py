"""Registration of our own mailbox in the directory."""

import math
import secrets
from itertools import count

from msgspec.structs import replace

from ray_messaging.addressing.directory import Record, encode_record
from ray_messaging.errors import AlreadyExists
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.directory.directory import MqttDirectory
from ray_messaging.mqtt.wire.messages import DirectoryEntry, encode_entry
from ray_messaging.transports.transport import Limits, fenced


class Registration:
    """Directory entry of our mailbox, and its owner if it has a name.

    A broker has no transactions. So an exclusive claim is first published as pending, which senders do not see. When it
    has come back, all earlier claims have come, too, and the earliest wins.
    """

    def __init__(self, control: ControlLink, directory: MqttDirectory) -> None:
        self.entry: DirectoryEntry | None = None  # as the directory should have it
        self.owner = ""
        self.reader = secrets.token_hex(8)
        self._numbers = count(1)
        self._control = control
        self._directory = directory

    def check_owner(self, mailbox: str, limits: Limits, owner: str) -> None:
        """Raise AlreadyExists if another live owner holds a named mailbox."""
        holder = self._directory.owners.get(mailbox, "")
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
        known = (self._directory.entries.get(mailbox), self._directory.pending.get(mailbox))
        return max((each.entry.epoch for each in known if each is not None), default=0) + 1

    def make(self, record: Record, epoch: int, owner: str, limits: Limits, *, stamp: str = "") -> DirectoryEntry:
        """Return a new entry; without a stamp it gets a new one, which asks senders for all frames that they keep."""
        return DirectoryEntry(
            record=encode_record(record),
            epoch=epoch,
            owner=owner,
            pending=False,
            messages=limits.messages,
            nbytes=limits.nbytes,
            stamp=stamp or secrets.token_hex(4),
            reader=self.reader,
            number=next(self._numbers),
            leased=limits.leased,
        )

    def renewed(self, entry: DirectoryEntry) -> DirectoryEntry:
        """Return the entry with a new stamp, which asks senders for all frames that they keep."""
        return replace(entry, stamp=secrets.token_hex(4), number=next(self._numbers))

    async def claim(self, record: Record, entry: DirectoryEntry) -> None:
        """Claim a mailbox and its agents; raise AlreadyExists for an earlier claim, Fenced for a newer reader."""
        mailbox = record.mailbox
        before = self._directory.entries.get(mailbox)
        topic = self._control.topics.directory(mailbox)
        # It expires, in case this process dies before it settles the claim.
        expiry_s = max(1, math.ceil(self._directory.lease_s))
        await self._control.retain((topic, encode_entry(replace(entry, pending=True))), expiry_s=expiry_s)
        pending = self._directory.pending.get(mailbox)
        if pending is None or pending.entry.reader != self.reader:
            raise fenced(mailbox, entry.epoch)
        taken = self._directory.rival(mailbox, record) if record.exclusive else None
        if taken is not None:
            await self._control.retain((topic, b"" if before is None else encode_entry(before.entry)))
            agent_id, rival = taken
            raise AlreadyExists(
                f"agent {agent_id!r} lives in group {rival!r} already: leave it out of {mailbox!r}, or remove that "
                "group first",
                kind="agent",
                value=agent_id,
                owner=rival,
            )

    async def publish(self, mailbox: str, entry: DirectoryEntry, owner: str = "") -> None:
        """Publish the entry, and the owner; raise Fenced if a newer reader has the mailbox."""
        self.entry, self.owner = entry, owner
        messages = [(self._control.topics.directory(mailbox), encode_entry(entry))]
        if owner:
            messages.append((self._control.topics.owner(mailbox), owner.encode()))
        await self._control.retain(*messages)
        known = self._directory.entries.get(mailbox)
        if known is not None and known.entry.reader != self.reader:
            raise fenced(mailbox, entry.epoch)

    async def release(self, mailbox: str) -> None:
        """Give up the ownership, so that any messager can take the mailbox over."""
        if self.owner:
            self.owner = ""
            await self._control.retain((self._control.topics.owner(mailbox), b""))

    async def withdraw(self, mailbox: str) -> None:
        """Remove the mailbox from the directory."""
        topics = self._control.topics
        await self._control.retain((topics.directory(mailbox), b""), (topics.owner(mailbox), b""))
        self.entry, self.owner = None, ""
