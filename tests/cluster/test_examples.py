"""The programs in examples/."""

import re
import runpy
import sys
from pathlib import Path

import pytest

RUMOUR = Path(__file__).resolve().parents[2] / "examples" / "rumour.py"


@pytest.mark.long
def test_a_rumour_spreads_and_gives_the_same_table_for_each_number_of_groups(ray_cluster, capsys, monkeypatch):
    tables = []
    for groups in ("1", "3"):
        monkeypatch.setattr(sys, "argv", [str(RUMOUR), "--generated", "--steps", "6", "--groups", groups])
        runpy.run_path(str(RUMOUR), run_name="__main__")
        tables.append(capsys.readouterr().out)
    known = [int(count.replace(",", "")) for count in re.findall(r"^ +\d+ +([\d,]+)", tables[0], re.MULTILINE)]
    assert tables[1] == tables[0]
    assert known[0] == 1
    assert len(known) == 6
    assert known == sorted(known)
    assert known[-1] > 1
