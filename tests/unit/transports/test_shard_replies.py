"""One reply of the replies of several shards: mixtures of receipts, refusals and failures."""

import pytest

from ray_messaging.errors import ConnectionFailed, MailboxFull
from ray_messaging.transports.sharded.merging import ShardOutcome, merged
from ray_messaging.transports.sharded.versions import packed, unpacked, version_of
from ray_messaging.transports.transport import FrameFate, SendReply, SendStatus

WRITTEN, DUPLICATE, FULL, GONE = FrameFate.WRITTEN, FrameFate.DUPLICATE, FrameFate.FULL, FrameFate.GONE
HELD_BACK = FrameFate.HELD_BACK
OK = SendStatus.OK


def reply(status=OK, *fates, takers=(), repeated=False):
    return SendReply(status, list(fates), list(takers), repeated)


def merge(*outcomes):
    """Merge outcomes of one shard each, with one frame each."""
    return merged([ShardOutcome([place], each) for place, each in enumerate(outcomes)], len(outcomes))


def lost(*, unsent=False):
    return ConnectionFailed("cut", host="h", port=1, unsent=unsent)


def test_fates_go_to_their_places():
    parts = [ShardOutcome([2, 0], reply(OK, WRITTEN, FULL)), ShardOutcome([1], reply(OK, GONE, takers=[3]))]
    found, error = merged(parts, 3)
    assert (found.status, found.fates, found.takers, found.repeated) == (OK, [FULL, GONE, WRITTEN], [3], False)
    assert error is None


@pytest.mark.parametrize(
    ("status", "fates"),
    [
        (SendStatus.STALE_DIRECTORY, [FULL]),
        (SendStatus.STALE_VERDICTS, [FULL]),
        (SendStatus.UNJUDGED, [FULL]),
        (SendStatus.FENCED, []),
        (SendStatus.LOST, []),
        (SendStatus.RESTORED, []),
    ],
)
@pytest.mark.parametrize("other", [WRITTEN, FULL])
def test_what_one_shard_refuses_waits_for_a_call_of_its_own(status, fates, other):
    found, error = merge(reply(OK, other), reply(status, *fates))
    assert (found.status, found.fates, error) == (OK, [other, HELD_BACK], None)


def test_what_an_earlier_call_has_written_counts_beside_a_refusal():
    found, _ = merge(reply(SendStatus.STALE_DIRECTORY, DUPLICATE), reply(SendStatus.STALE_VERDICTS, FULL))
    assert (found.status, found.fates) == (OK, [DUPLICATE, HELD_BACK])


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        ((SendStatus.STALE_DIRECTORY, SendStatus.FENCED), SendStatus.FENCED),
        ((SendStatus.RESTORED, SendStatus.LOST), SendStatus.LOST),
        ((SendStatus.STALE_VERDICTS, SendStatus.STALE_DIRECTORY), SendStatus.STALE_DIRECTORY),
        ((SendStatus.UNJUDGED, SendStatus.UNJUDGED), SendStatus.UNJUDGED),
    ],
)
def test_where_all_refuse_the_worst_reason_counts(statuses, worst):
    found, _ = merge(*(reply(status) for status in statuses))
    assert (found.status, found.fates) == (worst, [HELD_BACK] * 2)


def test_only_an_attempt_of_refused_frames_may_still_arrive():
    found, _ = merge(reply(OK, WRITTEN, repeated=True), reply(OK, FULL))
    assert not found.repeated
    found, _ = merge(reply(OK, WRITTEN), reply(OK, FULL, repeated=True))
    assert found.repeated


@pytest.mark.parametrize("error", [lost(), lost(unsent=True), MailboxFull("full", mailbox="")])
def test_a_failure_beside_receipts_comes_after_them(error):
    found, failure = merge(reply(OK, WRITTEN), error, reply(OK, FULL))
    assert (found.status, found.fates, found.repeated) == (OK, [WRITTEN, HELD_BACK, FULL], True)
    assert failure is error


def test_a_failure_without_receipts_is_raised():
    error = lost(unsent=True)
    with pytest.raises(ConnectionFailed) as caught:
        merge(error, reply(OK, FULL))
    assert caught.value is error


def test_the_error_that_promises_least_is_raised():
    for errors in ([lost(unsent=True), lost()], [lost(), lost(unsent=True)], [MailboxFull("full", mailbox=""), lost()]):
        with pytest.raises(ConnectionFailed) as caught:
            merge(*errors)
        assert not caught.value.unsent
    with pytest.raises(ConnectionFailed) as caught:
        merge(lost(unsent=True), reply(OK, FULL, repeated=True))
    assert not caught.value.unsent


def test_a_version_holds_the_version_of_each_shard():
    assert unpacked(-1, 3) == [-1, -1, -1]
    assert unpacked(0, 3) == [0, 0, 0]
    version = packed([5, 0, 2**53])
    assert unpacked(version, 3) == [5, 0, 2**53]
    assert [version_of(version, shard) for shard in range(3)] == [5, 0, 2**53]
    assert packed([5, 1, 2**53]) > version
    assert packed([6, 0, 2**53]) > version
