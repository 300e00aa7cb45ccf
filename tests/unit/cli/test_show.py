"""Output: plain without a colour terminal, and never cut."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from ray_messaging.cli.show import show_check, show_fates, show_heat_map, show_speed
from ray_messaging.replay.account import ReplayAccount

ACCOUNT = ReplayAccount(
    messages=12_345,
    fates={"delivered": 12_000, "blocked": 345, "published": 0, "undeliverable": 0},
    unknown=0,
    received=12_000,
    duplicates=0,
    out_of_order=0,
    lost=0,
    leaked=0,
    misdirected=0,
    changed=0,
    unexpected=0,
    agents_differ=0,
    seconds=0.5,
    latency_ms={"p50": 1.25, "p99": 2.5},
    blocked_by={"black_list": 345},
    unheard={"ann": 12},
    received_by_agent={1: 12_000},
    received_equals_file=False,
    groups=[{"name": f"group-{n}", "agents": 1, "sent": 1, "received": 1} for n in (1, 2)],
    matrix=[[9_000, 0], [1_000, 2_000]],
)


@pytest.fixture
def printed():
    """Return a function from a `show_...` to its text."""

    def printed(show, *args, **options):
        file = io.StringIO()
        show(Console(file=file, **({"width": 120} | options)), *args)
        return file.getvalue()

    return printed


def test_fates(printed):
    text = printed(show_fates, ACCOUNT)
    assert re.search(r"delivered +12,000 +97\.2%", text)
    assert re.search(r"blocked +345 +2\.8%.*\n  by black_list +345", text)
    assert re.search(r"  to agent ann +12 +no group listened", text)
    assert "\x1b" not in text


def test_heat_map(printed):
    text = printed(show_heat_map, ACCOUNT)
    assert re.search(r"from \\ to +group-1 +group-2 *\ngroup-1 +9,000 +0 *\ngroup-2 +1,000 +2,000", text)
    assert "\x1b" not in text
    coloured = printed(show_heat_map, ACCOUNT, force_terminal=True, color_system="truecolor")
    assert len(set(re.findall(r"\x1b\[38;[\d;]+m|\x1b\[\d+;48;[\d;]+m", coloured))) >= 2


def test_a_wide_heat_map_shows_digits(printed):
    groups = [{"name": f"group-{n}"} for n in range(1, 13)]
    matrix = [[1000 if row == column else 100 for column in range(12)] for row in range(12)]
    text = printed(show_heat_map, replace(ACCOUNT, groups=groups, matrix=matrix), width=60)
    assert "in tenths of the largest" in " ".join(text.split())
    assert re.search(r"group-2 +0 +9( +0){10} *\n", text)


def test_check(printed):
    assert "The account balances" in printed(show_check, ACCOUNT)
    text = printed(show_check, replace(ACCOUNT, duplicates=1))
    assert "DOES NOT BALANCE: 1 messages arrived again" in text
    assert "The account balances" not in text


def test_speed(printed):
    text = printed(show_speed, ACCOUNT, {"p50": 0.2, "p99": None})
    assert "24,690 messages/s (12,345 in 0.50 s)" in text
    assert "p50 1.25 ms, p99 2.50 ms in bulk. A lone message: nothing to measure.\n" in text
    assert printed(show_speed, ACCOUNT).endswith("in bulk.\n")
