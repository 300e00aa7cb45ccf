"""Forks: runs that begin in the middle of another run, on Ray."""

import inspect
import json
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import pytest
import ray
from typer.testing import CliRunner
from unit.formats import write as of_format_1

from ray_messaging import Calls, EventLog, Messaging, Steps, compare, rules, run
from ray_messaging.cli import app
from ray_messaging.cluster.handles.connection import find_actor
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, NotRepeatable, StepFailed
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import read_run, write_run
from ray_messaging.eventlog.forking import copy_run

AGENTS, STEPS, SEED = 40, 20, 7
PLACES = np.random.default_rng(SEED).random((AGENTS, 2))
INSERTED = 7  # the step from which the parent has another rule


def first_rules():
    return [rules.BlackList([(1, 2), (4, 9)]), rules.SenderBan(rules.Pattern([r'"[0-4]']), after=9)]


def person(me, inbox):
    """Do all that a step can, by a state that depends on the order of everything that was heard."""
    word = me.state.get("word", "0")
    for message in inbox:
        word = blake2b(f"{word}/{message.from_id}/{message.payload}".encode(), digest_size=6).hexdigest()
        if message.expects_answer:
            me.reply(message, {"word": word})
    word = blake2b(f"{word}/{me.step}/{me.rng.random():.17g}/{len(me.blocked)}".encode(), digest_size=6).hexdigest()
    me.state["word"] = word
    number = int(word, 16)
    if number % 3:
        me.send(number % AGENTS, {"word": word}, deliver_at=me.step + 1 + (number % 5 == 0) * 3)
    me.send((me.id + 1) % AGENTS, {"word": word[:3]})
    if number % 7 == 0:
        me.ask(number // 7 % AGENTS, {"of": word})
    if number % 5 == 0:
        me.broadcast("street", {"all": word})
    if me.id in {5, 6} and me.step == 9:
        me.move("group1")


def ran(messaging, until, groups=2, model=person):
    return messaging.run(model, agents=AGENTS, groups=groups, until=until, progress=False)


@contextmanager
def parent(folder, every, steps=STEPS, model=person):
    """Run a parent, with messages from outside and a change of its rules, and yield its result."""
    of = Steps(seed=SEED, digest=True, checkpoint=every)
    with Messaging.start(f"parent-{folder.name}", log_dir=folder, steps=of, rules=first_rules()) as messaging:
        messaging.create_audience("street", ids=[*range(AGENTS)], positions=PLACES, radius=0.2)
        messaging.rules.insert(rules.Sample(0.7), at_step=INSERTED)
        ran(messaging, 3, model=model)
        messaging.broadcast("*", {"word": "to all"})
        ran(messaging, 6, model=model)
        messaging.broadcast("*", {"word": "once more"})
        yield ran(messaging, steps, model=model)


@contextmanager
def forked(folder, into, at_step, every, *changes):
    """Fork at a step, with the rules that the parent had at the checkpoint, and its change of them if that is later."""
    begins = at_step // every * every
    late = [rules.Sample(0.7)] if begins > INSERTED else []
    given = [*first_rules(), *late, *changes]
    with Messaging.fork(folder, f"fork-{into.name}", at_step=at_step, log_dir=into, rules=given) as messaging:
        if not late:
            messaging.rules.insert(rules.Sample(0.7), at_step=INSERTED)
        yield messaging


def is_twin(folder, into, result, twin):
    assert twin.states == result.states
    assert twin.digests == {step: result.digests[step] for step in twin.digests}
    mine, theirs = EventLog.open(into), EventLog.open(folder)
    assert mine.diff(theirs) is None
    assert mine.history_digest(result.steps - 1) == theirs.history_digest(result.steps - 1)
    assert mine.balance() == theirs.balance()
    return True


@pytest.fixture(scope="module")
def ended(by_value, tmp_path_factory):
    """Give the folder of a parent that has ended, copied to another path, without its server; and its result."""
    folder = tmp_path_factory.mktemp("forks") / "of-five"
    with parent(folder, 5) as result:
        pass
    moved = folder.with_name("moved")
    folder.rename(moved)
    shutil.rmtree(f"{folder}-server")
    return moved, result


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.long
def test_a_twin_without_a_change_has_its_parents_digests_and_so_has_its_twin(ended, tmp_path):
    folder, result = ended
    before = contents(folder)
    twin, again = tmp_path / "twin", tmp_path / "again"
    with forked(folder, twin, 13, 5) as messaging:
        found = ran(messaging, STEPS)
    assert is_twin(folder, twin, result, found)
    assert contents(folder) == before  # a parent's folder is never written to
    shutil.rmtree(tmp_path / "twin-server")
    with forked(twin, again, 16, 5) as messaging:
        found = ran(messaging, STEPS)
    assert is_twin(folder, again, result, found)


def test_a_fork_is_its_parents_twin_until_it_is_changed(ended, tmp_path):
    folder, result = ended
    into = tmp_path / "banned"
    with forked(folder, into, 12, 5) as messaging:
        messaging.rules.insert(rules.BlackList([(3, 4)], name="ban"), at_step=15)
        twin = ran(messaging, STEPS)
    mine, theirs = EventLog.open(into), EventLog.open(folder)
    found = mine.diff(theirs)
    assert (found.step, found.agent, found.mine.to_id) == (15, 3, 4)
    assert (found.mine.fate, found.mine.rule, found.theirs.fate) == ("blocked", "ban", "delivered")
    assert [mine.digest(step) == theirs.digest(step) for step in range(15)] == [True] * 15
    mine.balance()  # raises if a message is there twice
    assert twin.states != result.states
    difference = compare(into, folder)
    assert difference.first == found
    table = difference.to_pandas()
    assert (table.loc[:14, "differ"].sum(), table.loc[15, "differ"], table.loc[15, "agents"]) == (0, 1, 1)
    assert table["blocked"].sum() == mine.balance().fates["blocked"]
    assert str(difference).startswith("The runs differ first in step 15, in message 15-")
    assert str(compare(folder, folder)) == "The runs sent the same messages."
    assert difference.plot().axes[0].patches[15].get_height() == 1


@pytest.mark.long
def test_a_step_that_must_repeat_and_does_not_is_named(ended, tmp_path):
    folder, _ = ended

    def other(me, inbox):
        person(me, inbox)
        if me.step == 6 and me.id == 8:
            me.send(9, {"word": "new"})

    with forked(folder, tmp_path / "other", 8, 5) as messaging, pytest.raises(NotRepeatable) as caught:
        ran(messaging, STEPS, model=other)
    assert (caught.value.step, caught.value.agent) == (6, 8)
    assert '{"word":"new"} in the fork, and missing in the parent' in str(caught.value)


@pytest.mark.long
def test_what_cannot_be_forked_is_refused_with_the_remedy(ended, tmp_path):
    folder, _ = ended
    into = tmp_path / "into"

    def fork(of=folder, exp_id="refused", log_dir=into, rules=(), **options):
        return Messaging.fork(of, exp_id, log_dir=log_dir, rules=rules, **options)

    with pytest.raises(
        ConfigError, match=r"no checkpoint before step 4: its first checkpoint is after step 4, so fork at step 5"
    ):
        fork(at_step=4)
    with pytest.raises(ConfigError, match=r"had rules \(BlackList\(name='black_list'\).*pass rules="):
        fork(rules=None)
    with pytest.raises(ConfigError, match=r"at_step='10' must be the number of a step"):
        fork(at_step="10")
    with pytest.raises(ConfigError, match="has only the steps up to 19, so it cannot be forked at step 21"):
        fork(at_step=21)
    with pytest.raises(LogError, match="no record of a run"):
        fork(tmp_path / "nothing")
    assert not into.exists()
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    newest = damaged / "_checkpoints" / "00000019.parquet"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.raises(LogError, match=r"00000019.parquet is damaged or was cut short .*: copy it again"):
        fork(damaged)
    newest.unlink()
    record = read_run(Folder(damaged))
    later = msgspec.structs.replace(record.starts[-1], rules=[])
    write_run(Folder(damaged), msgspec.structs.replace(record, starts=[*record.starts, later]))
    with pytest.raises(ConfigError, match=r"had rules \(BlackList\(name='black_list'\)"):  # those of an earlier start
        fork(damaged, rules=None)
    (into / "a file of the user").mkdir(parents=True)
    with pytest.raises(AlreadyExists, match="into is not empty: a fork needs a log_dir of its own"):
        fork(damaged)
    with fork(damaged, log_dir=tmp_path / "earlier") as messaging:
        assert messaging.steps.now == 15
        with pytest.raises(AlreadyExists, match="contains the log of a run: a fork needs a log_dir of its own"):
            fork(log_dir=tmp_path / "earlier", exp_id="other")
    shutil.rmtree(tmp_path / "earlier")
    with pytest.raises(AlreadyExists, match=r"has data of an earlier run in .*earlier-server: remove that folder"):
        fork(damaged, log_dir=tmp_path / "earlier")
    assert not (tmp_path / "earlier").exists()  # a start that fails leaves no log
    assert not [*tmp_path.glob(".*")]
    with pytest.raises(ConfigError, match=r"checkpoint=2 copies the data of one server, but shards=2"):
        Messaging.start("shards", steps=Steps(checkpoint=2), log_dir=tmp_path / "shards", shards=2)
    shutil.rmtree(damaged / "_checkpoints")
    with pytest.raises(ConfigError, match=r"has no checkpoint.*Steps\(checkpoint=10\)"):
        fork(damaged)
    with Messaging.start("no-steps", log_dir=tmp_path / "no-steps"):
        pass
    with pytest.raises(ConfigError, match="no-steps had no steps"):
        fork(tmp_path / "no-steps")


def crowd(group, step):
    """Tell the next agent the own number, the sum of what was heard, and what all share."""
    messages, state = step.messages, group.state
    for to_id, payload in zip(messages.to_ids.tolist(), messages.payloads, strict=True):
        state["number"][group.ids == to_id] += payload["number"]
    told = [{"number": number, "loud": group.shared} for number in state["number"].tolist()]
    step.send_columns(group.ids, (group.ids + 1) % 6, told)


def silent(group, step):
    if step.number < 2 or 0 not in group.ids:
        crowd(group, step)


@pytest.fixture(scope="module")
def numbers(by_value, tmp_path_factory):
    """Return the folder of a run of crowds, and a function that runs it."""
    folder = tmp_path_factory.mktemp("numbers") / "parent"

    def run(messaging, model=crowd, shared=False):
        more = {"start": lambda group: {"number": group.ids * 1}, "shared": shared, "progress": False}
        return messaging.run(model, agents=6, groups=2, until=4, by="group", **more)

    with Messaging.start("numbers", log_dir=folder, steps=Steps(digest=True, checkpoint=2)) as messaging:
        run(messaging)
    return folder, run


@pytest.mark.long
@pytest.mark.parametrize("changed", ["state", "shared", "model", "message"])
def test_a_fork_differs_from_its_step_on_by_what_was_changed(numbers, tmp_path, changed):
    folder, run = numbers
    states = {"states": {"1": {"number": 50}}} if changed == "state" else {}
    with Messaging.fork(folder, f"numbers-{changed}", at_step=2, log_dir=tmp_path / "fork", **states) as messaging:
        if changed == "message":
            messaging.broadcast("*", {"number": 50})
        run(messaging, silent if changed == "model" else crowd, shared=changed == "shared")
    mine, theirs = EventLog.open(tmp_path / "fork"), EventLog.open(folder)
    assert [mine.digest(step) == theirs.digest(step) for step in (0, 1)] == [True, True]
    found = mine.diff(theirs)
    assert found.step == 2
    if changed in {"state", "model"}:
        assert found.agent == (1 if changed == "state" else 0)
    if changed == "shared":
        assert (found.mine.payload["loud"], found.theirs.payload["loud"]) == (True, False)
    assert (found.mine is None) == (changed == "model")


@pytest.mark.long
def test_a_message_from_outside_that_moves_nobody_is_no_difference(numbers, tmp_path):
    folder, run = numbers
    with Messaging.fork(folder, "numbers-nobody", at_step=3, log_dir=tmp_path / "fork") as messaging:
        messaging.broadcast("*", {"number": 0})
        run(messaging)
    mine, theirs = EventLog.open(tmp_path / "fork"), EventLog.open(folder)
    assert mine.digest(2) != theirs.digest(2)
    assert mine.diff(theirs) is None


@pytest.mark.long
def test_a_state_that_a_group_cannot_have_is_refused(numbers, tmp_path):
    folder, run = numbers
    fork = Messaging.fork(folder, "numbers-half", at_step=2, log_dir=tmp_path / "fork", states={0: {"number": 0.5}})
    with (
        fork as messaging,
        pytest.raises(StepFailed, match=r"\['number'\] has the dtype int64, which cannot hold the float 0.5 exactly"),
    ):
        run(messaging)


def wave(me, inbox):
    """Say a number to the next agent, which a shell command can run."""
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 6, {"at": me.step})


@pytest.mark.long
def test_a_shell_forks_a_run(by_value, tmp_path, monkeypatch):
    (tmp_path / "town.py").write_text(inspect.getsource(wave))
    monkeypatch.chdir(tmp_path)
    with Messaging.start("waves", log_dir="waves", steps=Steps(checkpoint=2)) as messaging:
        messaging.run(wave, agents=6, groups=2, until=5, progress=False)
    given = ["fork", "waves", "banned", "--at-step", "4", "--rules", "black-list:3-4", "--until", "6"]
    found = CliRunner().invoke(app, [*given, "--model", "town:wave"])
    assert found.exit_code == 0, found.output
    assert "The fork of waves begins with step 4." in found.output
    assert "The runs differ first in step 4, in message 4-0-3 of agent 3." in found.output
    assert EventLog.open("banned").count(fate="blocked")["count"].to_pylist() == [2]
    for model, why in {"town:nobody": "cannot be imported", "town": "is a module"}.items():
        refused = CliRunner().invoke(app, [*given, "--model", model])
        assert refused.exit_code == 2
        assert f"--model '{model}' {why}" in refused.output


@pytest.mark.long
def test_a_parent_whose_groups_and_log_are_killed_at_its_checkpoints_has_the_same_ones(by_value, tmp_path, ended):
    _, result = ended
    folder = tmp_path / "killed"

    def dying(me, inbox):
        person(me, inbox)
        mark = tmp_path / f"{me.step}"
        if me.step in {4, 5, 9, 10} and me.id == me.step and not mark.exists():
            mark.touch()
            if me.step == 9:
                ray.kill(find_actor("parent-killed/log"), no_restart=False)
            os.kill(os.getpid(), signal.SIGKILL)

    with parent(folder, 5, model=dying) as killed:
        assert killed.digests == result.digests
    for at_step in (5, 10):
        into = tmp_path / f"killed-{at_step}"
        with forked(folder, into, at_step, 5) as messaging:
            found = ran(messaging, STEPS)
        assert is_twin(folder, into, result, found)


@pytest.mark.long
def test_whatever_is_killed_while_a_fork_begins_it_is_a_twin(ended, tmp_path):
    folder, result = ended
    killed = tmp_path / "killed"

    def kill(name):
        for _ in range(2):
            while (actor := find_actor(f"fork-killed/{name}")) is None:
                time.sleep(0.01)
            ray.kill(actor, no_restart=False)
            time.sleep(0.3)

    killers = [threading.Thread(target=kill, args=[name]) for name in ("interceptor", "server")]
    for killer in killers:
        killer.start()
    with forked(folder, killed, 15, 5) as messaging:
        for killer in killers:
            killer.join()
        found = ran(messaging, STEPS)
    assert is_twin(folder, killed, result, found)

    died = tmp_path / "died"
    copy_run(Folder(folder), Folder(died), "fork-died", 14)  # a driver that is killed then leaves this
    late = [*first_rules(), rules.Sample(0.7)]
    steps = Steps(seed=SEED, digest=True, checkpoint=5)
    with Messaging.start("fork-died", log_dir=died, steps=steps, rules=late, on_existing="resume") as messaging:
        assert messaging.steps.now == 15
        found = ran(messaging, STEPS)
    assert is_twin(folder, died, result, found)


@pytest.mark.long
def test_a_fork_goes_on_without_the_series_of_its_parent(by_value, tmp_path):
    """It was refused, though it has a copy."""
    folder, into = tmp_path / "parent", tmp_path / "fork"
    how = {"agents": 4, "collect": lambda me: {"number": me.id}, "progress": False}
    run(person_alone, until=12, log_dir=folder, checkpoint=4, seed=SEED, **how)
    with Messaging.fork(folder, "fork", at_step=6, log_dir=into) as messaging:
        messaging.run(person_alone, until=8, **how)
    shutil.rmtree(folder / "_series")
    with Messaging.fork(folder, "fork", at_step=6, log_dir=into, on_existing="resume") as messaging:
        messaging.run(person_alone, until=10, **how)
        assert sorted(set(messaging.log.series()["step"].to_pylist())) == [*range(10)]


def person_alone(me, inbox):
    me.send((me.id + 1) % 4, {"heard": len(inbox)})


@pytest.mark.long
def test_ctrl_c_ends_a_fork_also_in_the_step_before_a_message_from_outside(ended, tmp_path):
    folder, result = ended
    driver, into, mark = os.getpid(), tmp_path / "ctrl-c", tmp_path / "asked"

    def interrupting(me, inbox):
        person(me, inbox)
        if me.step == 5 and me.id == 5 and not mark.exists():
            mark.touch()
            os.kill(driver, signal.SIGINT)
            time.sleep(1)

    with forked(folder, into, 5, 5) as messaging:
        stopped = ran(messaging, STEPS, model=interrupting)
        assert (stopped.stopped, stopped.steps) == (True, 6)
        found = ran(messaging, STEPS, model=interrupting)
    assert is_twin(folder, into, result, found)


@pytest.mark.long
def test_a_run_that_sent_nothing_has_forks_too(by_value, tmp_path):
    def counting(me, inbox):
        me.state["steps"] = me.state.get("steps", 0) + 1

    folder = tmp_path / "silent"
    with Messaging.start("silent", log_dir=folder, steps=Steps(checkpoint=2)) as messaging:
        ran(messaging, 4, model=counting)
    with Messaging.fork(folder, "silent-too", log_dir=tmp_path / "silent-too") as messaging:
        assert messaging.steps.now == 4
        assert ran(messaging, 6, model=counting).states[0] == {"steps": 6}


def test_a_run_of_format_1_is_forked_and_without_a_change_the_fork_is_equal(ray_cluster, tmp_path):
    """All versions 1.x fork what version 1.0 has written: its checkpoint, its answers of calls, and its log."""
    written = Path(of_format_1.__file__).parent / "format-1"
    folder, into = shutil.copytree(written / "run", tmp_path / "run"), tmp_path / "fork"
    given = {"rules": [rules.BlackList([(3, 4)])], "calls": Calls()}
    ray.cloudpickle.register_pickle_by_value(of_format_1)  # workers cannot import it
    with Messaging.fork(folder, "fork-of-format-1", at_step=2, log_dir=into, **given) as messaging:
        result = messaging.run(of_format_1.person, agents=10, groups=1, until=3, progress=False)
    digests = json.loads((written / "digests.json").read_text())
    assert result.digests == {int(step): digest for step, digest in digests.items()}
    assert result.states == {agent: {"heard": 2 if agent in {0, 4} else 4, "length": 5} for agent in range(10)}
    assert EventLog.open(into).diff(EventLog.open(folder)) is None
