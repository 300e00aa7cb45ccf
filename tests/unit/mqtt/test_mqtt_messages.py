"""Encoded MQTT messages: round trips, and only FrameError for any bytes."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ray_messaging.errors import FrameError
from ray_messaging.mqtt.wire.messages import (
    Data,
    DirectoryEntry,
    Position,
    Signal,
    SignalKind,
    decode_data,
    decode_entry,
    decode_positions,
    decode_signal,
    encode_data,
    encode_entry,
    encode_positions,
    encode_signal,
)

NUMBER = st.integers(0, 2**63 - 1)
NAME = st.from_regex(r"[A-Za-z0-9._-]{1,200}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DECODERS = [decode_data, decode_signal, decode_entry, decode_positions]


@st.composite
def datas(draw):
    base, after, seq = sorted(draw(st.tuples(NUMBER, NUMBER, NUMBER)))
    base, seq = max(base, 1), min(seq, 2**63 - 2) + 1
    return Data(draw(NAME), draw(NUMBER), seq, base, min(max(after, base - 1), seq - 1), draw(st.binary(max_size=50)))


DATA = datas()
SIGNAL = st.builds(Signal, st.sampled_from(SignalKind), NAME, NUMBER, NUMBER)
CARD = st.builds(DirectoryEntry, st.binary(max_size=50), NUMBER, TEXT, st.booleans(), NUMBER, NUMBER, TEXT, TEXT)
PLACES = st.dictionaries(NAME, st.builds(Position, NUMBER, NUMBER, NUMBER), max_size=5)


@given(DATA)
def test_data_comes_out_as_it_went_in(data):
    assert decode_data(encode_data(data)) == data


@given(SIGNAL)
def test_a_signal_comes_out_as_it_went_in(signal):
    found = decode_signal(encode_signal(signal))
    assert found == signal
    assert isinstance(found.kind, SignalKind)


@given(CARD)
def test_a_card_comes_out_as_it_went_in(card):
    assert decode_entry(encode_entry(card)) == card


@given(PLACES)
def test_places_come_out_as_they_went_in(places):
    found = decode_positions(encode_positions(places))
    assert found == places
    assert all(isinstance(place, Position) for place in found.values())


ENCODED = st.one_of(
    DATA.map(encode_data), SIGNAL.map(encode_signal), CARD.map(encode_entry), PLACES.map(encode_positions)
)
NESTED = b"\x91" * 100_000  # arrays in arrays


def refused_or_read(encoded):
    for decode in DECODERS:
        with suppress(FrameError):
            decode(encoded)


@given(st.binary(max_size=100))
@example(b"")
@example(b"RMD\x01\xff\xff")
@example(b"RMD\x01\xa0\x86" + NESTED)
@example(b"RMS\x01\x95" + b"\x00\xa1s\x00\x00" + NESTED)
@example(b"RMC\x01" + NESTED)
@example(b"RMP\x01\xdf\xff\xff\xff\xff")
def test_no_bytes_raise_anything_but_frame_error(data):
    refused_or_read(data)
    for kind in b"DSCP":
        refused_or_read(b"RM" + bytes([kind, 1]) + data)


@given(ENCODED, st.data())
def test_damaged_bytes_raise_nothing_but_frame_error(encoded, draw):
    at = draw.draw(st.integers(0, len(encoded) - 1))
    refused_or_read(encoded[:at])
    refused_or_read(encoded[:at] + draw.draw(st.binary(min_size=1, max_size=3)) + encoded[at + 1 :])


@given(ENCODED)
def test_each_kind_is_read_by_its_own_decoder_only(encoded):
    read = 0
    for decode in DECODERS:
        try:
            decode(encoded)
        except FrameError:
            continue
        read += 1
    assert read == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"sender": ""},
        {"sender": "a/b"},
        {"sender": "+"},
        {"sender": "x" * 201},
        {"epoch": -1},
        {"epoch": 2**63},
        {"seq": 0},
        {"seq": 2},
        {"base": 0},
        {"base": 4},
        {"after": 0},
        {"after": 3},
    ],
)
def test_numbers_that_contradict_each_other_and_names_that_fit_no_topic_are_refused(wrong):
    good = Data("s", 1, 3, 2, 2, b"frame")
    assert decode_data(encode_data(good)) == good
    with pytest.raises(FrameError):
        decode_data(encode_data(good._replace(**wrong)))


@pytest.mark.parametrize("kind", [-1, 3, 10**9])
def test_a_signal_of_an_unknown_kind_is_refused(kind):
    with pytest.raises(FrameError, match="unknown kind"):
        decode_signal(encode_signal(Signal(kind, "m", 1, 1)))


def test_another_version_is_refused():
    encoded = bytearray(encode_data(Data("s", 1, 1, 1, 0, b"frame")))
    encoded[3] += 1
    with pytest.raises(FrameError, match="begins with"):
        decode_data(bytes(encoded))


def test_fields_appended_by_a_later_version_are_skipped():
    pack = msgspec.msgpack.encode
    header = pack(["s", 1, 3, 2, 2, "new", {"more": [1]}])
    envelope = b"RMD\x01" + len(header).to_bytes(2, "little") + header + b"frame"
    assert decode_data(envelope) == Data("s", 1, 3, 2, 2, b"frame")
    assert decode_signal(b"RMS\x01" + pack([1, "m", 4, 5, "new"])) == Signal(SignalKind.RESEND, "m", 4, 5)
    card = DirectoryEntry(b"record", 1, "me", False, 10, 20, "stamp", "reader")
    assert decode_entry(b"RMC\x01" + pack([*msgspec.structs.astuple(card), "new"])) == card
    assert decode_positions(b"RMP\x01" + pack({"s": [1, 2, 3, "new"]})) == {"s": Position(1, 2, 3)}
