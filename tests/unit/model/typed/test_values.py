"""Values of payloads as arrays: whole numbers stay exact."""

import numpy as np
import pytest
from support.batches import batch_to

from ray_messaging import columns
from ray_messaging.errors import InvalidColumns
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.columns import PayloadColumn

BIG = [2**53 + 1, 2**62 + 1]


def messages_of(*parts):
    slices = []
    for lines in parts:
        rows = lines.count if isinstance(lines, PayloadColumn) else len(lines)
        slices.append(Slice(batch_to([1] * rows, lines=lines), 0, rows))
    return Messages("exp", slices)


def of_json(values):
    return PayloadColumn.of([b'{"a":%d}' % value for value in values])


@pytest.mark.parametrize(
    "parts",
    [
        [columns(a=np.array(BIG)), columns(a=np.array([1, 2**63 + 5], np.uint64))],
        [columns(a=np.array([-1, *BIG])), columns(a=np.array([1, 2**63 + 5], np.uint64))],
        [of_json([*BIG, 2**63 + 1])],
        [of_json(BIG), of_json([2**63 + 1])],
        [of_json([-1, 2**63 + 1])],
        [of_json([*BIG, 1.5])],
        [of_json(BIG), of_json([1.5])],
    ],
)
def test_whole_numbers_stay_exact(parts):
    messages = messages_of(*parts)
    expected = [message.payload["a"] for message in messages]
    assert messages.column("a").tolist() == expected
    typed = [name for name in messages.to_pandas() if name == "payload.a"]
    assert [messages.to_pandas()[name].tolist() for name in typed] == [expected] * len(typed)


def test_whole_numbers_that_no_type_holds_are_refused():
    with pytest.raises(InvalidColumns, match="can hold all numbers of the column"):
        columns(a=[-1, 2**63 + 1])


@pytest.mark.parametrize("values", [[b'[1,"a"]'], [b'[true,"a"]'], [b'["a\\u0000","b"]']])
def test_vectors_of_texts_are_objects(values):
    messages = messages_of(PayloadColumn.of([b'{"a":%s}' % value for value in values]))
    assert messages.column("a").tolist() == [message.payload["a"] for message in messages]
