"""The programs in examples/."""

import os
import re
import runpy
import subprocess
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ray_messaging import EventLog, Messaging, columns, rules

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(ray_cluster, monkeypatch, capsys):
    """Return a function that runs an example; it returns the output without what Ray's node writes if it is busy."""

    def run(program, *arguments):
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        return "".join(line for line in capsys.readouterr().out.splitlines(keepends=True) if "(raylet)" not in line)

    return run


@pytest.mark.long
def test_a_rumour_spreads_and_gives_the_same_table_for_each_number_of_groups(run):
    tables = [run("rumour.py", "--generated", "--steps", "6", "--groups", groups) for groups in ("1", "3")]
    known = [int(count.replace(",", "")) for count in re.findall(r"^ +\d+ +([\d,]+)", tables[0], re.MULTILINE)]
    assert tables[1] == tables[0]
    assert known[0] == 1
    assert len(known) == 6
    assert known == sorted(known)
    assert known[-1] > 1


@pytest.mark.long
def test_a_town_agrees_on_a_place_and_goes_on_behind_its_last_call(run, tmp_path):
    town = partial(run, "town.py", "--agents", "24")
    first, *table, calls = town().splitlines()
    evenings = [list(map(int, line.split())) for line in table[2:]]
    assert first == "asking gpt-4o-mini at a fake server"
    assert [evening for evening, *_ in evenings] == [0, 1, 2, 3, 4, 5]
    assert {sum(counts) for _, *counts in evenings} == {24}
    assert max(evenings[-1][1:]) > max(evenings[0][1:]) + 4  # more of them meet than at first
    friends = np.random.default_rng(7).integers(0, 24, (3 * 24, 2))
    made = 5 * len(np.unique(friends[:, 1]))  # of all that hear something, in all steps but the first
    told = re.fullmatch(rf"{made} calls, ([\d,]+) tokens, ([\d.]+) USD", calls)
    folder = ("--log-dir", str(tmp_path / "town"))
    spent = town(*folder, "--budget", f"{Decimal(told[2]) / 2:f} USD").splitlines()
    assert next(at for at, line in enumerate(spent) if " calls, " in line) <= len(table)  # fewer evenings
    rest = town(*folder).splitlines()
    assert rest[1 : len(table) + 1] == table
    log = EventLog.open(tmp_path / "town").calls(by="function").to_pylist()
    assert [(row["calls"], row["input_tokens"] + row["output_tokens"]) for row in log] == [
        (made, int(told[1].replace(",", "")))
    ]


@pytest.mark.long
def test_people_and_agents_guess_together(run, tmp_path):
    pytest.importorskip("nicegui")
    turns, guesses = run(
        "seats.py", "--scripted", "--people", "3", "--port", "0", "--log-dir", str(tmp_path / "seats")
    ).splitlines()
    assert turns == "15 of 15 turns were taken by people"
    low, *_, high = sorted(map(int, re.findall(r"\d+", guesses)))
    assert high - low < 100


@pytest.fixture
def fresh(home):
    """Return a function that runs an example as a user does, in a process of its own, where no Ray runs."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
    env |= {"TMPDIR": str(home), "RAY_TMPDIR": str(home)}

    def run(program, *arguments):
        command = [sys.executable, EXAMPLES / program, *arguments]
        done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr
        assert not re.search("^Traceback", done.stderr, re.MULTILINE)  # Ray Data's workers, whom it stops, print theirs
        return done.stdout

    return run


@pytest.mark.long
def test_a_survey_reminds_those_that_answered_wrongly(run):
    printed = run("survey.py", "--agents", "200")
    lines = printed.splitlines()
    assert lines[0] == "Survey('moods', 190 answered, 10 invalid)"
    assert lines[1].startswith("agent ")
    assert "why: String should have at least 1 character" in lines[1]
    assert lines[3] == "Survey('moods', 200 answered)"
    assert [line.split()[-2:] for line in lines[-2:]] == [["80", "1.5"], ["120", "4.0"]]


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "job.py run --steps 2 --log-dir moods",
        "rumour.py --generated --steps 2",
        "town.py --agents 12",
    ],
)
def test_an_example_that_shares_the_cluster_of_tests_runs_where_no_ray_runs_too(fresh, command):
    program, *arguments = command.split()
    assert fresh(program, *arguments)
    if program == "job.py":
        assert fresh("log_data.py", "moods").startswith("2,000 rows")


def test_no_example_is_left_out():
    here = Path(__file__)
    # The environment of agent-framework has a test of its own.
    text = "".join(
        path.read_text(encoding="utf-8") for path in (here, here.with_name("test_agent_framework_on_ray.py"))
    )
    assert not [path.name for path in EXAMPLES.glob("*.py") if path.name not in text]


@pytest.mark.long
def test_followers_agree(run):
    printed = run("followers.py", "--generated", "--steps", "6")
    counts = re.findall(r"([\d,]+) (?:broadcasts|messages)", printed)
    broadcasts, messages = (int(count.replace(",", "")) for count in counts)
    assert broadcasts == 6 * 1000
    assert messages > 15 * broadcasts
    low, high = map(float, re.search(r"between ([\d.]+) and ([\d.]+)", printed).groups())
    assert high - low < 0.5


@pytest.mark.long
def test_a_rule_in_the_middle_of_a_run_changes_it_from_its_step_on(run, tmp_path):
    given = ("--agents", "60", "--steps", "6", "--at", "3", "--folder", str(tmp_path))
    printed = run("moderation.py", *given)
    table = [tuple(map(int, line.split())) for line in printed.splitlines()[1:7]]
    assert [free == moderated for _, free, moderated in table[:3]] == [True] * 3
    assert [moderated for _, _, moderated in table[3:]] == [0] * 3
    assert min(free for _, free, _ in table) > 0
    assert "the runs differ first in step 3: {'says': 'you idiot'} became {'says': 'you ***'}" in printed


@pytest.mark.long
def test_birds_flock(run):
    printed = run("flocking.py", "--steps", "10")
    orders = [float(order) for order in re.findall(r"order ([\d.]+)", printed)]
    assert len(orders) == 2
    assert orders[1] > orders[0]


@pytest.mark.long
def test_each_trial_of_a_sweep_is_an_experiment(run, tmp_path):
    given = ("--chances", "0", "1", "--steps", "4", "--folder", str(tmp_path))
    printed = run("sweep.py", *given)
    table = [
        line.replace(",", "").split() for line in printed.partition("chance   know it   messages\n")[2].splitlines()
    ]
    assert table[0] == ["0.0", "1", "0"]
    chance, know, messages = map(float, table[1])
    assert (chance, know) == (1, 13)  # agent 0, its four friends, and their eight others
    folders = {path.parent for path in (tmp_path / "logs").glob("*/events-*.parquet")}
    assert [EventLog.open(folder).stats()["rows"] for folder in folders] == [messages]


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # Ray Data's own
def test_ray_data_reads_a_log_of_several_files(run, tmp_path):
    folder = tmp_path / "log"
    for turn, silent in enumerate((3, 4)):  # each start begins a file, with names that the other one lacks
        with Messaging.start(
            "read-by-ray", rules=[rules.BlackList([(silent, None)])], log_dir=folder, on_existing="resume"
        ) as messaging:
            west = messaging.create_group(f"west-{turn}", range(10))
            west.send_columns(list(range(10)), [9] * 10, {"text": f"Hello turn-{turn}"})
            west.send_columns([0, 1], [9, 9], columns(price=np.array([1.5, 2.5])))
    assert len(list(folder.glob("*.parquet"))) > 2
    lines = run("log_data.py", str(folder)).splitlines()
    assert lines[:3] == ["24 rows", "      22  delivered", "       2  blocked, black_list"]
    assert lines[3:] == ["      20  hello", "      10  turn-0", "      10  turn-1"]


@pytest.mark.long
def test_a_what_if_asks_only_what_is_new(run):
    lines = run("counterfactual.py", "--agents", "30").splitlines()
    saved, paid = map(int, re.findall(r"\d+", lines[2]))
    assert saved > 0
    assert paid > 0
    assert lines[3].startswith("The runs differ first in step 2, in message 2-")
    assert any("rule moderator" in line for line in lines)


@pytest.mark.long
def test_an_audit_shows_no_change_where_nothing_is_changed(fresh):
    lines = fresh("audit.py", "--agents", "12", "--seeds", "2").splitlines()
    table = {line[:18].strip(): [float(value) for value in line[18:].split()] for line in lines[2:]}
    assert table["none"][0] == table["none"][3] == 0
    assert table["none"][2] > 0
    assert table["no park"][0] < 0 < table["no park"][3]
