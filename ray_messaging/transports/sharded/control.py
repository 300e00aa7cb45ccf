"""The control shard's part of the directory: the mailboxes of the other shards, and the shard of each name."""

from typing import NamedTuple

from ray_messaging.addressing.directory import Record, decode_record, encode_record
from ray_messaging.transports.redis.ingress import WIDE
from ray_messaging.transports.redis.transport import RedisTransport
from ray_messaging.transports.transport import DirectoryDelta


class Entry(NamedTuple):
    """Entry of a mailbox of another shard; `text` names the version and the mailbox's incarnation, too."""

    mailbox: str
    shard: int
    text: str


class Loaded(NamedTuple):
    """Content of the control shard: its own mailboxes' changes, the others' entries, the records that changed."""

    own: DirectoryDelta
    version: int
    entries: list[Entry]
    changed: list[Record]


class ControlEntries:
    """The entries of the other shards' mailboxes, on the control shard."""

    def __init__(self, transport: RedisTransport, shards: int) -> None:
        self._transport = transport
        self._link, self._keys = transport.link, transport.keys
        self._shards = shards

    async def place(self, mailbox: str, wanted: int | None) -> int:
        """Return the shard of a mailbox; choose one where its name has none: the one wanted, or the next in turn."""
        keys = [self._keys.meta, self._keys.homes, self._keys.changes, self._keys.steps()]
        args = [mailbox, "" if wanted is None else wanted, self._shards]
        return int(await self._link.script("place_mailbox", keys, args))

    async def load(self, since: int) -> Loaded:
        """Return what changed since a version, all of it where the server has an older one."""
        found = await self._load(since)
        return await self._load(-1) if found.version < since else found

    async def _load(self, since: int) -> Loaded:
        version, pairs, changed = await self._link.script("load_entries", self._entry_keys, [since])
        own = await self._transport.load_directory(since)
        texts = [text.decode() for text in pairs]
        entries = [
            Entry(mailbox, int(text.split(":")[1]), text) for mailbox, text in zip(texts[::2], texts[1::2], strict=True)
        ]
        return Loaded(own, min(version, own.version), entries, [decode_record(data) for data in changed if data])

    @property
    def _entry_keys(self) -> list[str]:
        return [self._keys.meta, self._keys.entries, self._keys.entered]

    async def enter(self, record: Record, shard: int, born: str, version: int) -> int | None:
        """Enter a mailbox that is there, if the directory is at a version; return the new one. None: it is not."""
        wide = int(record.agent_channels > WIDE)
        args = [max(version, 0), record.mailbox, encode_record(record), f"{shard}:{born}", wide]
        entered = int(await self._link.script("enter_mailbox", self._entry_keys, args))
        return None if entered < 0 else entered

    async def entry(self, mailbox: str) -> Entry | None:
        """Return the entry of a mailbox."""
        text = await self._link.command("HGET", self._keys.entries, mailbox)
        return None if text is None else Entry(mailbox, int(text.split(b":")[1]), text.decode())

    async def drop(self, entry: Entry) -> None:
        """Take the entry of a mailbox that is gone out of the directory, unless it has come again."""
        args = [entry.mailbox, entry.text, self._keys.ears + entry.mailbox]
        await self._link.script("drop_entry", self._entry_keys, args)
