"""Bytes from outside: each decoder accepts them, or refuses them with the right error."""

import zlib

import pytest
from support.fuzzing import TARGETS, inputs

from ray_messaging.errors import FrameError
from ray_messaging.interception.interceptor import saved_answers

SEED = 20
COUNTS = {"frames": 20_000, "requests": 2_500, "answers": 5_000, "records": 5_000, "notes": 4_000}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "times",
    [1, pytest.param(5, marks=pytest.mark.long), pytest.param(20, marks=[pytest.mark.long, pytest.mark.soak])],
)
async def test_nothing_but_a_refusal(name, times):
    target = TARGETS[name]()
    decoded, count = 0, COUNTS.get(name, 10_000) * times
    for data in inputs(target, SEED + times, count):
        try:
            decoded += target.check(data)
        except BaseException as error:
            raise AssertionError(f"{name} fell over {data.hex()}") from error
    # Inputs that are all refused at the door prove nothing, nor do those that are all taken.
    assert count / 50 < decoded < count * 49 / 50


def test_data_that_inflate_without_end_are_refused(monkeypatch):
    monkeypatch.setattr(saved_answers, "FRAME_LIMIT", 10_000)
    assert saved_answers.AnswerRecord.unpack(saved_answers.AnswerRecord(b"x" * 5_000).pack()).answer == b"x" * 5_000
    for bomb in (
        saved_answers.AnswerRecord(b"x" * 20_000).pack(),
        zlib.compress(bytes(10**7)),
        zlib.compress(b"\x93")[:-3],
    ):
        with pytest.raises(FrameError, match="damaged"):
            saved_answers.AnswerRecord.unpack(bomb)
