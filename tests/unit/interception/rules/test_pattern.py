"""Pattern: matches in any script, quick exclusions, and runaway regexes."""
# ruff: noqa: RUF001 - look-alikes are what is tested here

import json
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rules import batch_of, blocked, judged, one_by_one

from ray_messaging.interception.rules import Pattern, label
from ray_messaging.model.columns import PayloadColumn


def texts_blocked(rule, *texts):
    return [texts[row] for row in blocked(rule, batch_of([(1, 2)] * len(texts), texts))]


def batch_of_lines(lines, *, raw=False, index=None):
    batch = batch_of([(1, 2)] * (len(lines) if index is None else len(index)))
    batch.lines = PayloadColumn.of(lines, None if index is None else np.array(index, np.uint32), raw=raw)
    return batch


@pytest.mark.parametrize(
    ("word", "hits", "misses"),
    [
        (
            "bad",
            ["bad", "BAD!", "so bad.", "snake_bad_case", '"bad"', "“bad”", "it\nbad", "x\tbad", "bad's"],
            ["badly"],
        ),
        (
            "bad",
            ["我bad了", "x\\bad", "-bad-", "bad\u0336", "ba\u200bd", "b\u00adad", "ｂａｄ", "𝐛𝐚𝐝"],
            ["a\\nbad", "1bad"],
        ),
        ("kill you", ["kill you", "kill   you", "Kill\n you"], ["killyou", "kill, you", "skill you"]),
        ("straße", ["STRASSE", "Straße"], ["strassen"]),
        ("café", ["CAFÉ", "cafe\u0301"], ["cafe", "cafés"]),
        ("istanbul", ["İstanbul", "ISTANBUL"], ["istanbulu"]),
        ("北京", ["我爱北京天安门", "北京"], ["北 京"]),
        ("เลว", ["คนเลวมาก"], ["เล ว"]),
        ("हिन्दी", ["यह हिन्दी है"], ["हिन्दीx", "हिन्द"]),
        ("плохо", ["«ПЛОХО»", "очень плохо!"], ["неплохо"]),
        ("c++", ["C++ is", "(c++)"], ["c+", "xc++"]),
        ("$$$", ["pay $$$ now", "x$$$y"], ["$$"]),
        ('say "x"', ['he may say "x" now'], ["say x"]),
    ],
)
def test_words_in_any_script(word, hits, misses):
    assert texts_blocked(Pattern([word]), *hits, *misses) == hits
    assert texts_blocked(Pattern(regexes=["nothing at all"], words=[word]), *hits, *misses) == hits


def test_escapes_of_foreign_clients_hide_nothing():
    lines = [
        json.dumps({"x": "so \u0062ad"}).encode(),
        rb'{"x":"so \u0062\u0061d"}',
        rb'{"x":"\/bad\/"}',
        b"no JSON but bad",
    ]
    lines += [rb'{"x":"\\bad"}', rb'{"x":"\\nbad"}', b"\xff bad", b'{"x":"nbad\\\\bad"}']
    assert blocked(Pattern(["bad"]), batch_of_lines(lines, raw=True)) == [0, 1, 2, 3, 4, 6, 7]
    assert blocked(Pattern(["bad"]), batch_of_lines([rb"C:\bad", rb"[\bad", rb'"\\bad"'], raw=True)) == [0, 1, 2]
    assert blocked(Pattern(["nbad"]), batch_of_lines(lines, raw=True)) == [5, 7]


ALPHABET = st.text(st.sampled_from('abBéİß\u0301\u200b_ \n\\"$.北ड़1'), max_size=8)


@given(st.lists(ALPHABET, min_size=1, max_size=5), st.lists(ALPHABET, max_size=12), st.booleans())
def test_the_quick_way_rules_out_nothing_that_is_there(words, texts, ignore_case):
    """A regex that never hits has every message looked at."""
    words = [word for word in words if word.strip(" \n\u0301\u200b")]
    texts = [*texts, *words, *(f"x {word}.\n" for word in words)]
    if not words:
        return
    quick = Pattern(words, ignore_case=ignore_case)
    slow = Pattern(words, [r"(?!)"], ignore_case=ignore_case)
    batch = batch_of([(1, 2)] * len(texts), texts)
    assert judged(quick, batch) == judged(slow, batch) == one_by_one(quick, batch)
    assert judged(pickle.loads(pickle.dumps(quick)), batch) == judged(quick, batch)
    assert set(range(len(texts) - 2 * len(words), len(texts))) <= set(blocked(quick, batch))


def test_case_counts_where_it_is_asked_to():
    assert texts_blocked(Pattern(["Bad"], ["^Ok"], ignore_case=False), "Bad", "bad", "Ok", "ok", "Ｂａｄ") == [
        "Bad",
        "Ok",
        "Ｂａｄ",
    ]
    assert texts_blocked(Pattern(regexes=["^Ok", "[A-Z]{4}"]), "ok", "not ok", "abcd") == ["ok", "abcd"]


def test_where_it_looks():
    payloads = [{"a": {"b": [1, "so bad"]}}, {"bad": "key"}, {"content": "bad"}, {"content": ["x", {"y": "bad"}]}, {}]
    batch = batch_of([(1, 2)] * 5, payloads=payloads)
    assert blocked(Pattern(["bad"]), batch) == [0, 2, 3]
    assert blocked(Pattern(["bad"], field="content"), batch) == [2, 3]
    assert blocked(
        Pattern(["bad"], field="content"), batch_of_lines([b'["bad"]', b"bad", b'"bad"', b"7"], raw=True)
    ) == [0, 1, 2]


def test_lines_that_messages_share_are_looked_at_once():
    batch = batch_of_lines([b'{"x":"bad"}', b'{"x":"fine"}'], index=[0, 1, 0, 0])
    assert blocked(Pattern(["bad"]), batch) == [0, 2, 3]


def test_reasons_name_the_match():
    rule = Pattern(["Straße"], [r"\d{4}"])
    reasons = [verdict.reason for verdict in judged(rule, batch_of([(1, 2)] * 2, ["strasse", "pin 1234"]))]
    assert reasons == ["the payload holds the word 'Straße'", r"the payload holds what matches '\\d{4}'"]


def test_labels():
    rule = Pattern(["bad"], action="label", name="rude")
    assert judged(rule, batch_of([(1, 2)] * 2, ["bad", "fine"])) == [label("rude"), None]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("So BAD, bad", "So ***, ***"),
        ("b\u200bad STRASSE 1234", "*** *** ***"),
        ("x 99 y", "x *** y"),
        ("ſtraße", "***"),
    ],
)
def test_masks(text, masked):
    rule = Pattern(["bad", "straße"], [r"\d+"], action="mask")
    (verdict,) = judged(rule, batch_of([(1, 2)], payloads=[{"content": text, "n": [1, "fine\u200b"], "bad": None}]))
    assert not verdict.blocked
    assert verdict.payload == {"content": masked, "n": [1, "fine\u200b"], "bad": None}
    kept = batch_of([(1, 2)], payloads=[{"content": masked, "to": text}])
    assert judged(Pattern(["bad", "straße"], [r"\d+"], action="mask", field="content"), kept) == [None]


@given(st.lists(ALPHABET, min_size=1, max_size=4), ALPHABET)
def test_masked_text_is_removed_completely(words, text):
    words = [word for word in words if word.strip(" \n\u0301\u200b*")]
    if not words:
        return
    (verdict,) = judged(Pattern(words, action="mask"), batch_of([(1, 2)], [text + " " + words[0]]))
    masked = verdict.payload["content"]
    assert masked == "***" or blocked(Pattern(words), batch_of([(1, 2)], [masked])) == []


def test_a_mask_that_makes_a_word_is_masked_too():
    (verdict,) = judged(Pattern(["bad", "-***-"], action="mask"), batch_of([(1, 2)], ["so -bad- it is"]))
    assert verdict.payload == {"content": "***"}


def test_a_payload_that_is_not_an_object_is_blocked_instead_of_masked():
    assert blocked(Pattern(["bad"], action="mask"), batch_of_lines([b"bad", b'["bad"]', b"7"], raw=True)) == [0, 1]


RUNAWAY = r"^(a|aa)+$"
ENDLESS = "a" * 60 + "b"


def test_a_regex_that_runs_away_blocks_its_message_alone():
    rule = Pattern(regexes=[RUNAWAY], time_limit_s=0.02)
    began = time.process_time()
    verdicts = judged(rule, batch_of([(1, 2)] * 3, ["fine", ENDLESS, "aaa"]))
    assert time.process_time() - began < 1.0
    assert [verdict and verdict.blocked for verdict in verdicts] == [None, True, True]
    assert verdicts[1].reason.endswith("took too long: the limit for a message is 0.02 s")
    assert RUNAWAY in verdicts[1].reason
    rule.on_error = "allow"
    assert blocked(rule, batch_of([(1, 2)] * 2, [ENDLESS, "aaa"])) == [1]


def test_the_limit_holds_for_the_whole_message():
    rule = Pattern(regexes=[RUNAWAY] * 3 + ["never"], time_limit_s=0.02, action="mask")
    began = time.process_time()
    slow = "a" * 16 + "b"  # less than a millisecond each, so that no single one takes too long
    assert blocked(rule, batch_of([(1, 2)], payloads=[{"x": [slow] * 10_000}])) == [0]
    assert time.process_time() - began < 1.0


def test_a_batch_full_of_them_does_not_hold_the_interceptor():
    rule = Pattern(regexes=[RUNAWAY], time_limit_s=0.005)
    began = time.process_time()
    assert len(blocked(rule, batch_of([(1, 2)] * 2000, [ENDLESS] * 2000))) == 2000
    assert time.process_time() - began < 2.0
    assert blocked(rule, batch_of([(1, 2)], ["fine"])) == []


def test_an_odd_payload_fails_alone():
    deep = b'{"x":' * 100_000 + b"1" + b"}" * 100_000
    assert blocked(Pattern(regexes=["bad"]), batch_of_lines([b'{"x":"fine"}', deep], raw=True)) == [1]


def test_a_hundred_words_cost_about_a_microsecond_where_none_is_found():
    """The best of many runs: a busy machine must not fail this, a search per word would."""
    random = np.random.default_rng(1)
    made = ["".join(map(chr, random.integers(97, 123, random.integers(4, 9)))) for _ in range(3000)]
    words, vocabulary = made[:100], made[100:]
    texts = [" ".join(random.choice(vocabulary, 14))[:82] + "." for _ in range(1000)]
    batch = batch_of([(1, 2)] * 1000, texts)
    rule, best = Pattern(words), float("inf")
    for _ in range(30):
        began = time.thread_time()
        assert rule.check_batch(batch, "e") == {}
        best = min(best, time.thread_time() - began)
    assert best / 1000 < 4e-6  # measured 1.1; the slack is for slower machines
