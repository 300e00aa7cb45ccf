"""Threads of questions and answers, and queries by message ids."""

import pytest
from support.log_queries import T0, log_of, row, write_folder

from ray_messaging.errors import InvalidQuery


def ids(table):
    return table["message_id"].to_pylist()


@pytest.fixture
def log(tmp_path):
    """Open a log of three segments; the first has plain messages alone."""
    plain = [row(0), row(1)]
    asked = [
        row(2, expects_answer=True),
        row(4, 2, 1, in_reply_to="s-1-2", sent_at=T0 + 9),
        row(3, 3, 1, in_reply_to="s-1-2", expects_answer=True, sent_at=T0 + 8),
        row(5, expects_answer=True),
    ]
    answered = [row(6, 1, 3, in_reply_to="s-1-3"), row(7, "ann", 1, in_reply_to="s-1-5")]
    return log_of(write_folder(tmp_path, [plain, asked, answered]))


@pytest.mark.parametrize("message_id", ["s-1-2", "s-1-3", "s-1-4", "s-1-6"])
def test_each_message_of_a_thread_leads_to_all_of_it(log, message_id):
    found = log.thread(message_id)
    assert ids(found) == ["s-1-2", "s-1-3", "s-1-4", "s-1-6"]
    assert found["from_id"].to_pylist() == [1, 3, 2, 1]
    assert found["in_reply_to"].to_pylist() == [None, "s-1-2", "s-1-2", "s-1-3"]


def test_ids_of_texts(log):
    assert log.thread("s-1-5")["from_id"].to_pylist() == ["1", "ann"]


def test_a_message_without_answers_and_an_unknown_one(log):
    assert ids(log.thread("s-1-0")) == ["s-1-0"]
    assert ids(log.thread("s-1-99")) == []
    for wrong in (None, "", 3):
        with pytest.raises(InvalidQuery, match="message_id"):
            log.thread(wrong)


def test_an_answer_to_a_question_that_the_log_does_not_have(tmp_path):
    log = log_of(write_folder(tmp_path, [[row(1, in_reply_to="gone-1-2")]]))
    assert ids(log.thread("s-1-1")) == ["s-1-1"]


def test_ids_of_steps_and_those_that_look_like_one(tmp_path):
    rows = [row(1, step=3, message_id="3-0-1"), row(2, message_id="3-0-2"), row(3, message_id=f"{'9' * 30}-1-2")]
    log = log_of(write_folder(tmp_path, [rows[:1], rows[1:]]))
    assert [ids(log.thread(one["message_id"])) for one in rows] == [[one["message_id"]] for one in rows]


def test_queries_by_ids(log):
    assert ids(log.query(in_reply_to="s-1-2")) == ["s-1-4", "s-1-3"]
    assert ids(log.query(in_reply_to=["s-1-3", "s-1-5"], from_id=1)) == ["s-1-6"]
    assert ids(log.query(in_reply_to=None)) == ["s-1-0", "s-1-1", "s-1-2", "s-1-5"]
    assert ids(log.query(message_id=["s-1-0", "s-1-7"])) == ["s-1-0", "s-1-7"]
    with pytest.raises(InvalidQuery, match="message_id=None"):
        log.query(message_id=None)
