"""Transactions over several shards: the pattern of a transactional outbox.

A transaction commits on the shard of its own mailbox, in one call: the cursor, the state, its number, the frames for
mailboxes there, and those for other shards as the sender's outbox. Its sender then relays these, one call for each
shard, under the seqs that they were committed with, and empties the outbox. A shard skips a seq that it has, so that
whoever takes the sender's epoch may relay them again. That comes before anything else under a new epoch.

Before the commit the other shards are asked whether they would take their frames; from then on no agents leave these
mailboxes until the frames are there. So a transaction is refused as a
whole for what one server refuses it for: a full mailbox, a full log, another directory, verdicts that count no more.
What is committed is written even where a mailbox has filled up since, at most one transaction of each sender above its
limit. If it waited for room, two groups that send to each other could wait for ever, because neither fetches meanwhile.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ray_messaging.common.backoff import STALE_VERDICT_RETRY, Backoff
from ray_messaging.errors import (
    ConfigError,
    ConnectionFailed,
    FrameError,
    InterceptorUnavailable,
    MailboxFull,
    MessagingError,
    OutcomeUnknown,
    TransitError,
)
from ray_messaging.receipt import DELIVERED
from ray_messaging.transports.redis.transport import RedisTransport
from ray_messaging.transports.sharded.calls import at_all, part_of, places_by_shard
from ray_messaging.transports.sharded.merging import SETTLED, worst_status
from ray_messaging.transports.sharded.transactions.waiting import WaitingFrame, WaitingJudge
from ray_messaging.transports.transport import (
    LOG,
    FrameFate,
    FrameWrite,
    LoggedFrame,
    SendReply,
    SendRequest,
    SendStatus,
    fenced,
    lost,
)
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.log_notes import LogNote, encode_log_note

logger = logging.getLogger(__name__)

_JUDGED = 8  # times that a frame is judged again while the rules change under our hands
_UNCHECKED = -1  # in place of a verdict epoch: no rule judges it
_WITH_IT = 0  # in place of a seq: a note goes with the write before it
_STALE = (SendStatus.STALE_VERDICTS, SendStatus.UNJUDGED)


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """Content of an outbox: the frames for each shard, and under which verdicts they were committed. Append-only."""

    verdict_epoch: int
    shards: dict[int, tuple[WaitingFrame, ...]]


_Asked = Mapping[int, Sequence[str]]  # the mailboxes on each shard that was asked

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


class _Sender(NamedTuple):
    name: str
    epoch: int


class Relayed(NamedTuple):
    """Outcome of a relay: the last seq of each mailbox, the takers of publications, whether rules have blocked some."""

    last: dict[str, int]
    takers: list[int]
    blocked: bool


class ShardedOutbox:
    """The commits of one sender, and their frames for other shards; `homes` are the shards of mailboxes."""

    def __init__(self, shards: Sequence[RedisTransport], homes: Mapping[str, int]) -> None:
        self.judge: WaitingJudge | None = None
        self._shards = shards
        self._homes = homes

    # -- a transaction --------------------------------------------------------------------------------------------

    async def transact(self, request: SendRequest) -> SendReply:
        """Commit a transaction, and relay its frames for other shards.

        Raises: OutcomeUnknown where it is committed, and not relayed.
        """
        conclusion = request.conclusion
        assert conclusion is not None
        home = self._homes.get(conclusion.mailbox, 0)
        parts = places_by_shard(request.writes, self._homes)
        here = parts.pop(home, [])
        committing = part_of(request, home, [request.writes[place] for place in here])
        committing.conclusion = conclusion
        if not parts:
            return await self._shards[home].send(committing)
        asked = {shard: [request.writes[place].mailbox for place in places] for shard, places in parts.items()}
        refusal = await self._ask(request, parts, asked)
        if refusal is not None:
            await self._take_back(request, asked)
            return refusal
        waiting = {shard: tuple(_waiting(request.writes[place]) for place in places) for shard, places in parts.items()}
        kept = _encode(_Kept(request.interceptor_epoch, waiting))
        committing.conclusion = msgspec.structs.replace(conclusion, outbox=kept)
        reply = await self._commit(home, committing, asked)
        fates = [FrameFate.HELD_BACK] * len(request.writes)
        for place, fate in zip(here, reply.fates, strict=False):  # some refusals have no fates
            fates[place] = fate
        if not _is_settled(reply):
            return SendReply(reply.status, fates, repeated=reply.repeated)
        try:
            relayed = await self._relay_committed(request, parts, waiting)
        except MessagingError as error:
            raise _unknown(f"{error}") from error
        if isinstance(relayed, SendReply):
            return msgspec.structs.replace(relayed, fates=fates)
        try:
            await self._shards[home].empty_outbox(request.sender, request.epoch)
        except TransitError as error:  # what is still kept is skipped where it is, once somebody takes the epoch
            logger.info("what %s has sent to other shards is still kept on its own: %s", request.sender, error)
        if relayed.blocked:
            raise _unknown("the rules have changed meanwhile, and block some of it: the event log has the fates")
        for place in range(len(fates)):
            fates[place] = FrameFate.WRITTEN if fates[place] is FrameFate.HELD_BACK else fates[place]
        return SendReply(SendStatus.OK, fates, reply.takers or relayed.takers, reply.repeated)

    async def _commit(self, home: int, committing: SendRequest, asked: _Asked) -> SendReply:
        """Make the call that commits; where it certainly has not, and will not, the other shards wait for nothing."""
        try:
            reply = await self._shards[home].send(committing)
        except (MailboxFull, ConnectionFailed) as error:
            if isinstance(error, MailboxFull) or error.unsent:
                await self._take_back(committing, asked)
            raise
        if not _is_settled(reply) and not reply.repeated:
            await self._take_back(committing, asked)
        return reply

    async def _take_back(self, request: SendRequest, asked: _Asked) -> None:
        """Tell the shards that were asked that nothing comes: agents may leave their mailboxes."""
        try:
            await at_all(
                self._shards[shard].take_back_promises(request.sender, request.epoch, mailboxes)
                for shard, mailboxes in asked.items()
            )
        except MessagingError as error:  # the next transaction takes its place, or the sender's next epoch does
            logger.info("a shard still waits for a transaction of %s: %s", request.sender, error)

    async def _ask(
        self, request: SendRequest, parts: Mapping[int, Sequence[int]], promised: _Asked
    ) -> SendReply | None:
        """Return why other shards would not take their parts now; None: they would. Nothing is written."""
        asked = [
            self._shards[shard].ask(part_of(request, shard, [_size(request.writes[place]) for place in places]))
            for shard, places in parts.items()
        ]
        try:
            replies = await at_all(asked)
        except ConnectionFailed as error:
            await self._take_back(request, promised)
            why = f"{error} (nothing of this transaction was done)"
            raise ConnectionFailed(why, host=error.host, port=error.port, unsent=True) from error
        fates = [FrameFate.HELD_BACK] * len(request.writes)
        refused = any(reply.status is not SendStatus.OK for reply in replies)
        for places, reply in zip(parts.values(), replies, strict=True):
            for place, fate in zip(places, reply.fates, strict=False):  # a fenced call has no fates
                if fate not in SETTLED and reply.status is SendStatus.OK:
                    fates[place], refused = fate, True
        return SendReply(worst_status(replies), fates) if refused else None

    # -- the relay ------------------------------------------------------------------------------------------------

    async def _relay_committed(
        self,
        request: SendRequest,
        parts: Mapping[int, Sequence[int]],
        waiting: Mapping[int, Sequence[WaitingFrame]],
    ) -> Relayed | SendReply:
        """Relay the frames of a commit; a reply is the refusal of a sender that has a successor."""
        sender, shards = _Sender(request.sender, request.epoch), list(parts)
        replies = await at_all(
            self._relay(sender, shard, [request.writes[place] for place in parts[shard]], request.interceptor_epoch)
            for shard in shards
        )
        for reply in replies:
            if reply.status in {SendStatus.FENCED, SendStatus.LOST}:
                return SendReply(reply.status, repeated=True)
        takers = next((reply.takers for reply in replies if reply.takers), [])
        stale = [shard for shard, reply in zip(shards, replies, strict=True) if reply.status in _STALE]
        epoch = request.interceptor_epoch
        again = await at_all(self._relay_judged(sender, shard, waiting[shard], epoch, {}) for shard in stale)
        for each in again:
            takers = takers or each.takers
        return Relayed({}, takers, any(each.blocked for each in again))

    async def drain(
        self, name: str, epoch: int, home: int, outbox: bytes, last: Sequence[Mapping[str, int]]
    ) -> Relayed:
        """Relay an outbox under a new epoch, as the rules of now have it, and empty it.

        Args: home is the shard that keeps it; last are the last seqs of the sender's frames on each shard.
        Raises: Fenced where the sender has a successor.
        """
        sender = _Sender(name, epoch)
        try:
            kept = _decode(outbox)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FrameError(f"what {name!r} has committed for other shards cannot be read: {error}") from error
        logger.info("%s relays what its last transaction has sent to other shards", name)
        try:
            parts = await at_all(
                self._relay_judged(sender, shard, frames, kept.verdict_epoch, last[shard])
                for shard, frames in kept.shards.items()
            )
        except MailboxFull as error:  # the memory of a server is full: it is tried again as if it were away
            host, port = self._shards[home].link.address
            raise ConnectionFailed(str(error), host=host, port=port) from error
        await self._shards[home].empty_outbox(name, epoch)
        seqs = {mailbox: seq for part in parts for mailbox, seq in part.last.items()}
        takers = next((part.takers for part in parts if part.takers), [])
        return Relayed(seqs, takers, any(part.blocked for part in parts))

    async def _relay_judged(
        self,
        sender: _Sender,
        shard: int,
        waiting: Sequence[WaitingFrame],
        verdict_epoch: int,
        last: Mapping[str, int],
    ) -> Relayed:
        """Relay frames one by one, each judged before by the rules of now; those up to the last seqs are there."""
        seqs, takers, blocked = dict[str, int](), list[int](), False
        for frame in waiting:
            if frame.seq <= last.get(frame.mailbox, 0):
                continue
            backoff = Backoff(STALE_VERDICT_RETRY)
            for _ in range(_JUDGED):
                writes, epoch, stops = await self._judged(frame, sender.epoch, verdict_epoch)
                reply = await self._relay(sender, shard, writes, epoch)
                if reply.status is not SendStatus.STALE_VERDICTS:
                    break
                await backoff.sleep()
            _check(reply, sender)
            seqs[frame.mailbox] = frame.seq
            takers, blocked = takers or reply.takers, blocked or stops
        return Relayed(seqs, takers, blocked)

    async def _judged(
        self, frame: WaitingFrame, sender_epoch: int, verdict_epoch: int
    ) -> tuple[list[FrameWrite], int, bool]:
        """Return the writes of a frame under the rules of now, their verdict epoch, whether these block some."""
        if self.judge is None or frame.mailbox == LOG:
            write = FrameWrite(frame.mailbox, frame.seq, frame.rows, frame.frame, frame.publish, frame.noted)
            return [write], _UNCHECKED if frame.mailbox == LOG else verdict_epoch, False
        judged = await self.judge.judge_waiting(frame, sender_epoch)
        writes = [FrameWrite(frame.mailbox, frame.seq, judged.rows, judged.frame, judged.publish, judged.noted)]
        if judged.blocked is not None:
            writes.append(FrameWrite(LOG, _WITH_IT, judged.blocked.rows, noted=judged.blocked))
        return writes, judged.verdict_epoch, judged.stopped > 0

    async def _relay(self, sender: _Sender, shard: int, writes: Sequence[FrameWrite], verdict_epoch: int) -> SendReply:
        """Write committed frames on their shard; those of a mailbox that is gone become dead letters there."""
        request = SendRequest(sender.name, sender.epoch, 0, verdict_epoch, writes)
        reply = await self._shards[shard].relay(request)
        gone = {write.mailbox for write, fate in zip(writes, reply.fates, strict=False) if fate is FrameFate.GONE} - {
            LOG
        }
        if not gone:
            return reply
        burying = msgspec.structs.replace(request, writes=_burying(writes, reply.fates, gone))
        buried = await self._shards[shard].relay(burying, bury=True)
        return SendReply(buried.status, buried.fates, reply.takers, buried.repeated)


def _burying(writes: Sequence[FrameWrite], fates: Sequence[FrameFate], gone: set[str]) -> list[FrameWrite]:
    """Return the writes for mailboxes that are gone, each with a note for the log, which reads no dead letters."""
    found: list[FrameWrite] = []
    mine = False
    for write, fate in zip(writes, fates, strict=True):
        if write.seq != _WITH_IT:
            mine = write.mailbox in gone and fate not in SETTLED
        if mine:
            found.append(write)
        if mine and write.frame and (note := _delivered(write)) is not None:
            found.append(FrameWrite(LOG, _WITH_IT, note.rows, noted=note))
    return found


def _delivered(write: FrameWrite) -> LoggedFrame | None:
    """Build the note on the rows of a frame that no other note tells of."""
    batch = decode(write.frame)
    rows = np.setdiff1d(np.arange(len(batch)), [] if batch.noted is None else batch.noted)
    if not len(rows):
        return None
    return LoggedFrame(encode(batch.take(rows)), encode_log_note(LogNote(DELIVERED, write.mailbox)), len(rows))


def _is_settled(reply: SendReply) -> bool:
    return reply.status is SendStatus.OK and all(fate in SETTLED for fate in reply.fates)


def _check(reply: SendReply, sender: _Sender) -> None:
    """Raise where a shard has not taken committed frames."""
    if _is_settled(reply):
        return
    if reply.status is SendStatus.FENCED:
        raise fenced(*sender)
    if reply.status is SendStatus.LOST:
        raise lost(*sender)
    if reply.status is SendStatus.UNJUDGED:
        raise ConfigError(
            f"what {sender.name!r} has committed for other shards waits for verdicts: this experiment has an "
            "interceptor by now, so pass messaging.interceptor to the Messager of this name"
        )
    raise InterceptorUnavailable(
        f"what {sender.name!r} has committed for other shards waits there: a shard takes it not ({reply.status.name}); "
        "it is tried again"
    )


def _waiting(write: FrameWrite) -> WaitingFrame:
    batch = b"" if write.mailbox or write.batch is None else encode(write.batch)
    return WaitingFrame(write.mailbox, write.seq, write.rows, write.frame, tuple(write.publish), write.noted, batch)


def _size(write: FrameWrite) -> FrameWrite:
    """Return a write as `ask` takes it."""
    return FrameWrite(write.mailbox, write.seq, write.rows, b"%d" % len(write.frame), noted=write.noted)


def _unknown(why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        "this transaction is committed: what it fetched is handled, its state is kept. What it sent to mailboxes on "
        f"other servers is kept beside the state, and goes there as soon as it can ({why}). Do not send it again"
    )
