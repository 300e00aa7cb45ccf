"""Frames that have waited for another server, under the rules of now: blocked, rewritten, labelled, deferred rows."""

import asyncio

import numpy as np
import pytest
from support.interceptors import Held, batch

from ray_messaging.addressing.directory import Directory
from ray_messaging.interception.client.verdict_client import LocalVerdictClient
from ray_messaging.interception.rules import ALLOW, BlackList, RateLimit, Rule, label, rewrite
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.receipt import BLOCKED, DELIVERED, PUBLISHED
from ray_messaging.sending.delivery.frame_router import FrameRouter
from ray_messaging.sending.delivery.waiting_frames import WaitingFrames
from ray_messaging.transports.sharded.transactions.waiting import WaitingFrame
from ray_messaging.transports.transport import LoggedFrame
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.log_notes import Before, LogNote, Why, decode_log_note, encode_log_note

PAIRS = [(1, 10), (2, 20), (3, 30)]


class PerPayload(Rule):
    """Decide by the payload's n."""

    name = "per_payload"
    needs_payload = True

    def __init__(self, decide):
        self.decide = decide

    def check(self, message):
        return self.decide(message.payload["n"])


def judge_of(*rules, logged=True):
    directory = Directory("town")
    directory.update(1, [], [], logged=logged)
    client = LocalVerdictClient(Interceptor("town", rules, epoch=5))
    return WaitingFrames(FrameRouter(directory, mirror=False), lambda: client)


def waiting(sent=None, noted=None, mailbox="far"):
    sent = batch([{"n": n} for n in range(3)], pairs=PAIRS, first=40) if sent is None else sent
    if mailbox:
        return WaitingFrame(mailbox, 7, len(sent), encode(sent), (), noted)
    return WaitingFrame(mailbox, 7, len(sent), b"", (), noted, encode(sent))


def payloads(data):
    found = decode(data)
    return [found.lines.row(row) for row in range(len(found))]


def note_of(logged):
    return decode_log_note(logged.note, logged.rows)


async def test_rows_that_pass_go_as_they_waited():
    frame = waiting()
    judged = await judge_of(BlackList([(9, None)])).judge_waiting(frame, 3)
    assert judged == (frame.frame, 3, (), None, None, 0, 5)


async def test_blocked_rows_leave_the_frame_and_have_a_note():
    judged = await judge_of(BlackList([(2, None)])).judge_waiting(waiting(), 3)
    assert payloads(judged.frame) == [b'{"n":0}', b'{"n":2}']
    going, note = decode(judged.frame), note_of(judged.blocked)
    assert [going.message_id(row) for row in range(2)] == ["s-1-40", "s-1-42"]
    assert (judged.rows, judged.stopped, judged.noted) == (2, 1, None)
    assert (note.fate, [why.rule for why in note.why]) == (BLOCKED, ["black_list"])
    assert payloads(judged.blocked.frame) == [b'{"n":1}']
    assert decode(judged.blocked.frame).message_id(0) == "s-1-41"


@pytest.mark.parametrize("mailbox", ["far", ""])
async def test_of_a_frame_that_is_blocked_whole_only_the_note_is_left(mailbox):
    judged = await judge_of(BlackList([(agent, None) for agent in (1, 2, 3)])).judge_waiting(
        waiting(mailbox=mailbox), 3
    )
    assert (judged.frame, judged.rows, judged.publish, judged.noted, judged.stopped) == (b"", 0, (), None, 3)
    assert len(payloads(judged.blocked.frame)) == 3


async def test_without_a_log_there_are_no_notes():
    rules = [BlackList([(2, None)]), PerPayload(lambda n: rewrite({"n": -n}))]
    judged = await judge_of(*rules, logged=False).judge_waiting(waiting(), 3)
    assert (judged.noted, judged.blocked, judged.stopped) == (None, None, 1)
    assert payloads(judged.frame) == [b'{"n":0}', b'{"n":-2}']


async def test_the_rules_judge_the_payloads_from_before_an_earlier_rewrite():
    """The waiting frame has 11 in place of 1; the rules of now make it 21, and no rule has rewritten 11."""
    sent = batch([{"n": n} for n in (0, 11, 2)], pairs=PAIRS, first=40)
    sent.noted, sent.labels = np.array([1], np.uint32), {"old": np.array([0], np.uint32)}
    row = np.array([0], "<u4").tobytes()
    note = LogNote(DELIVERED, "far", (Why("former", "", row),), (Before(row, b'{"n":1}'),))
    noted = LoggedFrame(encode(sent.take(np.array([1]))), encode_log_note(note), 1)
    seen = []

    def decide(n):
        seen.append(n)
        return rewrite({"n": n + 20}) if n == 1 else label("new") if n == 2 else ALLOW

    judged = await judge_of(PerPayload(decide)).judge_waiting(waiting(sent, noted), 3)
    assert seen == [0, 1, 2]
    going, told = decode(judged.frame), note_of(judged.noted)
    assert payloads(judged.frame) == [b'{"n":0}', b'{"n":21}', b'{"n":2}']
    assert (going.noted.tolist(), {name: rows.tolist() for name, rows in going.labels.items()}) == ([1], {"new": [2]})
    assert [(why.rule, before.line) for why, before in zip(told.why, told.before, strict=True)] == [
        ("per_payload", b'{"n":1}')
    ]
    judged = await judge_of().judge_waiting(waiting(sent, noted), 3)
    assert payloads(judged.frame) == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
    assert (judged.noted, decode(judged.frame).labels) == (None, {})


async def test_publications_are_built_again():
    judged = await judge_of(BlackList([(1, None)])).judge_waiting(waiting(mailbox=""), 3)
    assert [(each.channel, each.data) for each in judged.publish] == [
        ("exps:town:agents:20:agent-chat", b'{"n":1}'),
        ("exps:town:agents:30:agent-chat", b'{"n":2}'),
    ]
    assert (judged.frame, judged.rows, note_of(judged.noted).fate) == (b"", 2, PUBLISHED)
    assert note_of(judged.blocked).fate == BLOCKED


async def test_it_waits_for_slow_rules():
    slow = Held("slow", only=lambda message: message.payload["n"] == 1)
    judging = asyncio.create_task(judge_of(slow, BlackList([(3, None)])).judge_waiting(waiting(), 3))
    await slow.called(1)
    assert not judging.done()
    slow.release()
    judged = await judging
    assert (payloads(judged.frame), judged.verdict_epoch) == ([b'{"n":0}', b'{"n":1}'], 5)


async def test_each_frame_is_a_new_question():
    """An answer that the interceptor keeps for this sender is on another frame, or from before the rules changed."""
    judge = judge_of(RateLimit(per_round=1))
    assert [(await judge.judge_waiting(waiting(), 3)).stopped for _ in range(2)] == [0, 3]
