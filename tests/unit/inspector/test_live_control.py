"""Messages that a rule would have blocked of the log's last minute."""

import time

import pytest
from support.log_queries import log_of, row, write_folder

from ray_messaging.cli.rule_specs import KNOWN, parse_rule
from ray_messaging.inspector.sources.live_control import WIDTH, preview


@pytest.fixture
def log(tmp_path):
    now = time.time() - 20
    rows = [row(0, 1, 2, sent_at=now - 7200, text="long ago")]
    rows += [row(n, n % 4, (n + 1) % 4, sent_at=now + n // 10, text=f"casino {n}" * (n % 3)) for n in range(1, 100)]
    rows += [row(100, 1, 2, sent_at=now, fate="blocked", rule="no"), row(101, 1, 2, sent_at=now, text="x" * 2 * WIDTH)]
    rows += [row(102, "ann", None, sent_at=now)]
    return log_of(write_folder(tmp_path / "log", [rows]))


@pytest.mark.parametrize(
    ("spec", "blocked"),
    [
        ("black-list:1-2,3-*", 50),
        ("pattern:casino", 66),
        ("max-length:22", 65),
        ("rate-limit:per_second=1", 60),
        ("rate-limit:per_round=10", 60),
        ("sample:1.0", 100),
        ("sender-ban:3:pattern:casino", 96),
    ],
)
def test_it_judges_what_passed_in_the_last_minute(log, spec, blocked):
    found = preview(log, "test", parse_rule(spec))
    assert (found.judged, found.left_out) == (100, 1)
    assert found.blocked == pytest.approx(blocked, abs=8)
    assert 0 < len(found.examples) <= 8
    assert all(each.fate == "blocked" and each.reason for each in found.examples)


def test_every_rule_of_the_grammar_is_written_down():
    assert all(known.example.startswith(name) for name, known in KNOWN.items())
