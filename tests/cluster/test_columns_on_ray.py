"""Typed columns through the handles of groups, and an interceptor's rules."""

import numpy as np
import pandas as pd
import pytest

from ray_messaging import InvalidColumns, columns, rules
from ray_messaging.model.typed.table import TypedColumns


def test_handles_send_and_fetch_columns(town):
    _, west, east = town(rules.MaxLength(24))
    prices = np.array([1.5, 9.0, 2.5])
    frame = pd.DataFrame({"price": prices, "text": ["a", "bb", "c"]})
    assert [*west.send_columns([1, 2, 3], [11, 12, 13], frame).fates] == ["delivered", "blocked", "delivered"]
    messages = east.fetch_messages(timeout=60)
    assert messages.column("price").tolist() == [1.5, 2.5]
    assert messages.to_pandas()["payload.text"].tolist() == ["a", "c"]
    assert isinstance(messages.slices[0].batch.lines, TypedColumns)
    with pytest.raises(InvalidColumns, match="row 1"):
        west.send_columns(1, [11, 12], columns(text=["a", None]))


def test_an_answer_of_columns_to_a_handle(town):
    _, west, east = town()
    answers = west.ask_columns([1, 2], [11, 12], columns(n=[3, 4]), timeout=20)
    questions = east.fetch_messages(timeout=60)
    while len(questions) < 2:
        questions = questions + list(east.fetch_messages(timeout=60))
    east.reply_columns(questions, columns(twice=[2 * question.payload["n"] for question in questions]))
    answers.wait()
    assert sorted(answer["twice"] for answer in answers.to_pandas()["answer"]) == [6, 8]
