"""The frames that the supervisor adds to a step: changes of messages, new messages and log notes, with their counts."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from ray_messaging.addressing.channels import AgentId, build_channel
from ray_messaging.addressing.directory import Directory
from ray_messaging.interception.interceptor.step_judge import AddedMessage
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import AudiencePairs, Extension
from ray_messaging.model.fates import BLOCKED, DELIVERED, FATES, PUBLISHED, UNDELIVERABLE
from ray_messaging.sending.bulk_input import ColumnChunk
from ray_messaging.sending.logged_frames import logged
from ray_messaging.steps import box_frames
from ray_messaging.steps.box_frames import FIRST_ADDED
from ray_messaging.steps.digests import DigestRow, digest_rows, sum_of
from ray_messaging.steps.sent_messages import Copies, SentMessages
from ray_messaging.steps.step_destination import AttemptBoxes
from ray_messaging.transports.step_values import SUPERVISOR, box_name
from ray_messaging.transports.transport_values import LOG, FrameWrite, Published
from ray_messaging.wire.frames import encode
from ray_messaging.wire.notes import Before, LogNote, before_of, why_of

_ROWS = 8_192  # how many rows a frame has at most


class StepChanges:
    """The changes that rules on a whole step make to the step: frames for its boxes, and changes of its counts.

    Args: `boxes` names the step and the attempt; `audiences` has, for each version of an audience that got broadcasts,
    the hash of its pairs.
    """

    def __init__(
        self, boxes: AttemptBoxes, directory: Directory, audiences: Mapping[AudiencePairs, bytes], *, digest: bool
    ) -> None:
        self.writes: list[FrameWrite] = []  # the frames to write; `_calls` in steps/step_supervisor.py numbers them
        self.fates: Counter[str] = Counter()
        self.digest = 0  # the number that must be added to the sum of the step's digests
        self._number = boxes.step
        self._attempt = boxes.attempt
        self._directory = directory
        self._shut = boxes.shut
        self._audiences = audiences
        self._digests = digest

    def apply(self, sent: SentMessages, verdict: BatchVerdict) -> None:
        """Apply the verdicts of rules to the messages that groups have sent."""
        for copies in sent.copies(verdict.blocked):
            self._block(copies, verdict)
        labelled = {row for rows in verdict.labels.values() for row in rows}
        for copies in sent.copies((labelled | verdict.rewritten.keys()) - verdict.blocked.keys()):
            self._change(copies, verdict)

    def add(self, added: Sequence[AddedMessage]) -> None:
        """Add messages that rules send in the step."""
        ordinals: Counter[AgentId | None] = Counter()
        found: defaultdict[tuple[str, int, str], list[tuple[int, AddedMessage]]] = defaultdict(list)
        routes = self._directory.read_in(self._number + 1)
        for message in added:
            ordinal = FIRST_ADDED + ordinals[message.from_id]
            ordinals[message.from_id] += 1
            listeners = routes.mailboxes_of(message.to_id, message.subtopic)
            mailboxes = [name for name in listeners if box_name(name, message.deliver) not in self._shut]
            ends = self._number, message.deliver, message.from_id, ordinal, message.to_id, message.subtopic
            self._count([DigestRow(*ends, FATES[DELIVERED if mailboxes else UNDELIVERABLE], None, (), message.line)], 1)
            for mailbox in mailboxes or ("",):
                found[mailbox, message.deliver, message.subtopic].append((ordinal, message))
        for (mailbox, deliver, subtopic), rows in found.items():
            for low in range(0, len(rows), _ROWS):
                self._send(mailbox, deliver, subtopic, rows[low : low + _ROWS])

    # -- messages of groups ---------------------------------------------------------------------------------------

    def _block(self, copies: Copies, verdict: BatchVerdict) -> None:
        taken, rewritten = _taken(copies, box_frames.BLOCKED, verdict)
        self._amend(copies, taken, with_payload=False)
        once = np.flatnonzero(copies.first)
        batch = taken.take(once)
        messages = copies.messages[once].tolist()
        if not messages:
            return
        said = _before({at: row for at, row in enumerate(once.tolist()) if row in rewritten}, copies)
        self._note(batch, LogNote(BLOCKED, why=why_of([verdict.blocked[row] for row in messages]), before=said))
        before = copies.source.batch.take(copies.rows[once])
        blocks = {at: verdict.blocked[row] for at, row in enumerate(messages)}
        self._count(digest_rows(before, [DELIVERED] * before.rows, {}, self._audiences), -1)
        self._count(digest_rows(batch, [BLOCKED] * batch.rows, blocks, self._audiences), 1)

    def _change(self, copies: Copies, verdict: BatchVerdict) -> None:
        taken, rewritten = _taken(copies, box_frames.CHANGED, verdict)
        self._amend(copies, taken)
        why = [(rewritten[at], "") if at in rewritten else None for at in range(taken.rows)]
        said = _before({at: at for at in rewritten}, copies)
        self._note(taken, LogNote(DELIVERED, copies.source.mailbox, why_of(why), said))
        once = np.flatnonzero(copies.first)
        for batch, sign in ((copies.source.batch.take(copies.rows[once]), -1), (taken.take(once), 1)):
            self._count(digest_rows(batch, [DELIVERED] * batch.rows, {}, self._audiences), sign)

    def _amend(self, copies: Copies, taken: Batch, *, with_payload: bool = True) -> None:
        for low in range(0, taken.rows, _ROWS):
            part = taken.take(np.arange(low, min(low + _ROWS, taken.rows)))
            self.writes.append(FrameWrite(copies.source.box, 0, part.rows, encode(part, with_payload=with_payload)))

    # -- messages of rules ----------------------------------------------------------------------------------------

    def _send(self, mailbox: str, deliver: int, subtopic: str, rows: Sequence[tuple[int, AddedMessage]]) -> None:
        messages = [message for _, message in rows]
        columns = ColumnChunk(
            IdColumn.of([message.from_id for message in messages]),
            IdColumn.of([message.to_id for message in messages]),
            PayloadColumn.of([message.line for message in messages]),
        )
        ordinal = np.array([at for at, _ in rows], np.uint32)
        extension = Extension(attempt=self._attempt, deliver=deliver, ordinal=ordinal)
        batch = columns.batch((subtopic,), self._number, time.time(), extension)
        batch.sender = SUPERVISOR
        why = why_of([(message.rule, "") for message in messages])
        if mailbox:
            self._note(batch, LogNote(DELIVERED, mailbox, why))
            frame = copy(batch)
            frame.noted = np.arange(batch.rows, dtype=np.uint32) if self._directory.routing.logged else None
            self.writes.append(FrameWrite(box_name(mailbox, deliver), 0, batch.rows, encode(frame)))
            return
        exp_id = self._directory.exp_id
        out = [Published(build_channel(exp_id, message.to_id, subtopic), message.line) for message in messages]
        noted = logged(batch, LogNote(PUBLISHED, why=why)) if self._directory.routing.logged else None
        self.writes.append(FrameWrite("", 0, batch.rows, publish=out, noted=noted))

    # -- counts and notes -----------------------------------------------------------------------------------------

    def _note(self, batch: Batch, note: LogNote) -> None:
        if self._directory.routing.logged:
            self.writes.append(FrameWrite(LOG, 0, 0, noted=logged(batch, note)))

    def _count(self, rows: Sequence[DigestRow], sign: int) -> None:
        for row in rows:
            self.fates[row.fate] += sign
        if self._digests:
            self.digest += sign * sum_of(rows)


def _labels(copies: Copies, verdict: BatchVerdict) -> Mapping[str, set[int]]:
    """Return, for each label that the rules have given, which of the copies get it, as indices."""
    messages = copies.messages.tolist()
    found = {name: {at for at, row in enumerate(messages) if row in rows} for name, rows in verdict.labels.items()}
    return {name: rows for name, rows in found.items() if rows}


def _taken(copies: Copies, sender: str, verdict: BatchVerdict) -> tuple[Batch, dict[int, str]]:
    """Return copies of messages as a batch that the supervisor sends, with the new payloads and labels.

    Also return, for each row that was rewritten, the rule that rewrote it.
    """
    taken = copies.source.batch.take(copies.rows)
    taken.sender, taken.numbers, taken.noted = sender, None, None
    found = {at: verdict.rewritten[row] for at, row in enumerate(copies.messages.tolist()) if row in verdict.rewritten}
    taken = taken.with_payloads({at: line for at, (_, line) in found.items()})
    both = {name: set(rows.tolist()) for name, rows in taken.labels.items()}
    for name, rows in _labels(copies, verdict).items():
        both.setdefault(name, set()).update(rows)
    taken.labels = {name: np.array(sorted(rows), np.uint32) for name, rows in both.items()}
    return taken, {at: rule for at, (rule, _) in found.items()}


def _before(rows: Mapping[int, int], copies: Copies) -> tuple[Before, ...]:
    """Return the payloads that copies of messages had before they were rewritten.

    Args: `rows` has the rewritten rows of the log note's batch, each with the index of its copy.
    """
    lines = copies.source.batch.lines
    assert lines is not None
    return before_of({at: lines.row(int(copies.rows[copy])) for at, copy in rows.items()})
