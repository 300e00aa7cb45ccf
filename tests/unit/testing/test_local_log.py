"""The log of a local run: a folder as on Ray, which says what was sent, and why."""

import pytest
from support.resumed_run import Every, Sevens
from support.rumour import Rumour, sequential, small_world

from ray_messaging import Calls, EventLog, Mean, compare, run
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, StepFailed
from ray_messaging.eventlog.folder import Folder
from ray_messaging.interception.rules import RateLimit

RUMOUR = Rumour(small_world(24), steps=4, chance=110)


def live(me, inbox):
    heard = [(message.from_id, message.payload["word"]) for message in inbox]
    me.state["kept"] = RUMOUR.hear(me.id, me.step, me.state["kept"], heard)
    for to, word, read in RUMOUR.tell(me.id, me.step, me.state["kept"]):
        me.send(to, {"word": word}, deliver_at=read)


def rumour(**changed):
    arguments = {"agents": RUMOUR.agents, "until": RUMOUR.steps, "progress": False}
    return run(live, start=lambda me: {"kept": RUMOUR.begin(me.id)}, **arguments | changed)


def chat(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 6, {"word": f"{me.id}{me.step}"})


@pytest.mark.parametrize("groups", [1, 3])
def test_the_log_has_the_digests_of_one_loop(groups, tmp_path):
    _, digests = sequential(RUMOUR, False)
    result, log = rumour(groups=groups, log_dir=tmp_path / "log"), EventLog.open(tmp_path / "log")
    assert [log.digest(step) for step in range(RUMOUR.steps)] == digests
    assert result.digests == {step: log.digest(step).hex() for step in range(RUMOUR.steps)}
    assert log.balance().fates == {"undeliverable": 0, "published": 0, "blocked": 0} | dict(result.fates)


@pytest.mark.parametrize("of_steps", [False, True])
def test_a_log_changes_nothing_and_has_verdicts_series_and_causes(of_steps, tmp_path):
    rules = lambda: [Sevens(), RateLimit(per_round=1), *([Every()] if of_steps else [])]  # noqa: E731
    asked = {"agents": 6, "until": 9, "collect": Mean("heard"), "progress": False, "seed": 4}
    plain = run(chat, rules=rules(), **asked)
    logged = run(chat, rules=rules(), log_dir=tmp_path / "log", checkpoint=4, groups=2, **asked)
    assert (logged.digests, logged.fates, logged.states) == (plain.digests, plain.fates, plain.states)
    assert logged.series.equals(plain.series)
    log = EventLog.open(str(tmp_path / "log"))
    assert log.count().to_pylist() == [
        {"fate": fate, "count": count} for fate, count in logged.fates.most_common() if count
    ]
    assert {*log.query(fate="blocked")["rule"].to_pylist()} == {"sevens"} | ({"every"} if of_steps else set())
    assert log.series().num_rows == 9
    (message,) = log.query(from_id=5, step=2).to_pylist()
    assert "word" in str(log.why(message["message_id"]))
    assert Folder(str(tmp_path / "log")).checkpoints() == [3, 7, 8]
    record = log.run
    assert (record["model"]["model"], record["groups"]) == (f"{__name__}.chat", {"group0": 3, "group1": 3})
    assert [start["ended"] is not None for start in record["starts"]] == [True]


def test_two_logs_are_compared(tmp_path):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        run(
            lambda me, inbox: me.send(int(me.rng.integers(5)), {"n": me.step}),
            agents=5, until=3, seed=seed, log_dir=tmp_path / name, progress=False,
        )  # fmt: skip
    assert compare(tmp_path / "one", tmp_path / "same").first is None
    assert compare(tmp_path / "one", tmp_path / "other").first.step == 0


def test_a_log_that_is_there_is_kept_or_deleted_as_asked(tmp_path):
    rumour(log_dir=tmp_path / "log")
    first = EventLog.open(tmp_path / "log").end
    with pytest.raises(AlreadyExists, match="the log of an earlier run"):
        rumour(log_dir=tmp_path / "log", seed=5)
    assert EventLog.open(tmp_path / "log").end == first
    rumour(log_dir=tmp_path / "log", until=2, on_existing="reset")
    assert {*EventLog.open(tmp_path / "log").query()["step"].to_pylist()} == {0, 1}


def test_the_log_of_a_run_that_fails_has_its_steps(tmp_path):
    def failing(me, inbox):
        chat(me, inbox)
        if me.step == 3 and me.id == 2:
            raise ValueError("no more")

    with pytest.raises(StepFailed, match="no more"):
        run(failing, agents=6, until=9, log_dir=tmp_path / "log", progress=False)
    log = EventLog.open(tmp_path / "log")
    assert {*log.query()["step"].to_pylist()} == {0, 1, 2}
    log.balance()


def test_a_run_that_ends_early_has_calls_in_its_log(tmp_path):
    async def asking(me, inbox):
        me.state["answer"] = await me.remember(answer, me.id, me.step)

    async def answer(agent, step):
        return agent + step

    result = run(
        asking, agents=2, until=lambda now: now["answer"] >= 2.5, max_steps=9, collect=Mean("answer"),
        calls=Calls(concurrency=1), log_dir=tmp_path / "log", progress=False,
    )  # fmt: skip
    assert result.steps == 3
    assert EventLog.open(tmp_path / "log").calls()["result"].to_pylist() == ["0", "1", "1", "2", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"on_existing": "resume"}, "this run keeps none: pass log_dir='a folder'"),
        ({"log_dir": "x", "on_existing": "anew"}, "on_existing='anew' is unknown: write 'error', 'resume' or 'reset'"),
        ({"checkpoint": 5}, "this run keeps none: pass log_dir='a folder'"),
        ({"log_dir": "x", "checkpoint": 0}, "checkpoint=0 must be a whole number of steps"),
        ({"log_dir": ""}, "log_dir='' is not a path"),
        ({"log_dir": 3}, "log_dir=3 is not a path"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, why):
    with pytest.raises(ConfigError, match=why):
        rumour(**arguments)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "log").write_text("a file")
    with pytest.raises(LogError, match=str(tmp_path / "log")):
        rumour(log_dir=tmp_path / "log")
