"""Searches for `null`, by which JSON writes NaN and the infinities."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.errors import InvalidPayload
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.finite import may_have_null


@given(st.sampled_from([0, 1, 2, 3, 4000, 4096, 4097, 5000]), st.integers(0, 5100), st.binary(max_size=9))
def test_null_is_found_wherever_it_is(size, place, around):
    lines = bytearray(b"nulnul" * 1000)[:size]
    lines[place % (size + 1) : 0] = around
    assert may_have_null(bytes(lines)) == (b"null" in lines)
    lines[place % (size + 1) : 0] = b"null"
    assert may_have_null(bytes(lines))


@pytest.mark.parametrize("place", [0, 1, 2, 3, 998, 999])
def test_a_column_refuses_the_row_with_a_number_that_json_does_not_have(place):
    payloads = [{"n": float(n)} for n in range(1000)]
    payloads[place] = {"n": math.nan}
    with pytest.raises(InvalidPayload, match="nan"):
        PayloadColumn.encode(payloads, 10**6)
    payloads[place] = {"n": None, "text": "null"}
    assert len(PayloadColumn.encode(payloads, 10**6).list) == 1000
