"""Runs that share their beginning: it is run once, and each row is equal to a whole run of its own."""

from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from support.studies import work_here

from ray_messaging import Calls, Mean, Price, Study, batch_run, report_usage, rules, run
from ray_messaging.errors import ConfigError
from ray_messaging.interception.rules import ALLOW, Rule, StepRule, StepVerdicts, Table, block
from ray_messaging.studies.run_workers import run_packed

AGENTS, FROM, UNTIL = 8, 5, 10


@pytest.fixture(autouse=True)
def here(monkeypatch):
    work_here(monkeypatch)


def ring(seed):
    return np.random.default_rng(seed).integers(0, AGENTS, (24, 2))


def first(me):
    return {"heard": 0}


def gossip(me, inbox, chance):
    me.state["heard"] += len(inbox)
    for friend in me.neighbours:
        if me.rng.random() < chance:
            me.send(friend, {"step": me.step}, deliver_at=me.step + 1 + int(me.rng.integers(3)))


def person(me, inbox, *, chance):
    gossip(me, inbox, chance)


def changing(me, inbox, *, chance):
    """What `person` is in a whole run whose chance changes."""
    gossip(me, inbox, chance if me.step >= FROM else 0.5)


class Late(Rule):
    """Blocks some messages of the steps from `since` on."""

    name = "late"
    needs_payload = True

    def __init__(self, since):
        self.since = since

    def check(self, message):
        return block("") if message.payload["step"] >= self.since and message.to_id % 2 else ALLOW


class Quota(Rule):
    """Lets each agent send so many messages in all."""

    name = "quota"

    def __init__(self, most):
        self.most, self.state = most, Table()

    def check(self, message):
        self.state[message.from_id] = sent = self.state.get(message.from_id, 0) + 1
        return ALLOW if sent <= self.most else block("")


def sweep(folder, model, parameters, **changed):
    given = {"agents": AGENTS, "until": UNTIL, "graph": ring, "start": first, "replicates": 2, "progress": False}
    given |= {"outcomes": Mean("heard")} | changed
    return batch_run(model, parameters, folder=folder, **given)


def table(study):
    return study.to_pandas().drop(columns="seconds")


def of(study, **row):
    found = table(study)
    for name, value in row.items():
        found = found[found[name] == value]
    return found.drop(columns=[*row]).reset_index(drop=True)


@pytest.mark.parametrize("groups", [1, 3])
def test_each_row_is_equal_to_a_whole_run(tmp_path, groups):
    chances = {"chance": [0.1, 0.5, 0.9]}
    shared = sweep(tmp_path / "a", person, chances, vary_from=FROM, before={"chance": 0.5}, groups=groups)
    whole = sweep(tmp_path / "b", changing, chances, groups=groups)
    assert shared.to_pandas().error.isna().all()
    assert table(shared).equals(table(whole))
    assert shared.series.equals(whole.series)
    assert shared.to_pandas().digest.nunique() == 6
    one = shared.to_pandas().iloc[2]  # of the value before: nothing changes
    alone = run(
        lambda me, inbox: gossip(me, inbox, 0.5), agents=AGENTS, until=UNTIL, graph=ring(int(one.seed)), start=first,
        seed=int(one.seed), progress=False,
    )  # fmt: skip
    assert np.mean([state["heard"] for state in alone.states.values()]) == one.heard


def test_rules_that_vary_are_equal_to_whole_runs(tmp_path):
    def late(limit):
        return [Late(0)] if limit == "late" else []

    def late_in_a_whole_run(limit):
        return [Late(FROM)] if limit == "late" else []

    limits, later = {"limit": ["none", "late"]}, {"vary_from": FROM, "before": {"limit": "none"}}
    talks = lambda me, inbox: gossip(me, inbox, 0.5)  # noqa: E731
    shared = sweep(tmp_path / "a", talks, limits, rules=late, **later)
    whole = sweep(tmp_path / "b", talks, limits, rules=late_in_a_whole_run)
    assert table(shared).equals(table(whole))
    assert not of(shared, limit="none").heard.equals(of(shared, limit="late").heard)


def test_black_lists_stay_or_change(tmp_path):
    listed = lambda blocked: [rules.BlackList([(blocked, None)])]  # noqa: E731
    talks = lambda me, inbox: gossip(me, inbox, 0.5)  # noqa: E731
    shared = sweep(tmp_path / "a", talks, {"blocked": [0, 1]}, rules=listed, vary_from=FROM, before={"blocked": 0})
    whole = sweep(tmp_path / "b", talks, {"blocked": [0]}, rules=listed)
    assert of(shared, blocked=0).equals(of(whole, blocked=0))
    assert not set(of(shared, blocked=0).digest) & set(of(shared, blocked=1).digest)


class OnWholeSteps(StepRule):
    """Blocks the messages to odd agents in the steps from `since` on, or before it."""

    name = "whole"

    def __init__(self, since, *, before=False):
        self.since, self.before = since, before

    async def check_step(self, number, batch, exp_id):
        blocks = (number >= self.since) != self.before
        return StepVerdicts({row: block("") for row, to in enumerate(batch.to_ids.tolist()) if blocks and to % 2})


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("first_rule", [True, False])
def test_a_rule_on_whole_steps_may_come_or_go(tmp_path, first_rule, groups):
    rules = lambda on: [OnWholeSteps(0)] if on else []  # noqa: E731
    talks = lambda me, inbox: gossip(me, inbox, 0.5)  # noqa: E731
    given = {"replicates": 1, "groups": groups}
    shared = sweep(
        tmp_path / "a", talks, {"on": [True, False]}, rules=rules, vary_from=FROM, before={"on": first_rule}, **given
    )
    changes = lambda on: rules(first_rule) if on == first_rule else [OnWholeSteps(FROM, before=first_rule)]  # noqa: E731
    whole = sweep(tmp_path / "b", talks, {"on": [True, False]}, rules=changes, **given)
    assert table(shared).equals(table(whole))
    assert of(shared, on=True).heard[0] != of(shared, on=False).heard[0]


def test_an_equal_rule_remembers_and_another_one_begins_anew(tmp_path):
    talks = lambda me, inbox: gossip(me, inbox, 0.9)  # noqa: E731
    given = {"rules": lambda quota: [Quota(quota)], "outcomes": lambda result: {"sent": result.fates["delivered"]}}
    shared = sweep(tmp_path / "a", talks, {"quota": [3, 4]}, vary_from=FROM, before={"quota": 3}, **given)
    whole = sweep(tmp_path / "b", talks, {"quota": [3, 4]}, **given)
    assert of(shared, quota=3).equals(of(whole, quota=3))
    assert (of(shared, quota=4).sent > of(whole, quota=4).sent).all()


class Limit:
    def __init__(self, most):
        self.most = most

    def __getstate__(self):
        return {"most": self.most}


class Limited(Quota):
    """A quota whose attributes have no digest."""

    def __init__(self, limit):
        super().__init__(limit.most)
        self.limit = limit


def test_a_rule_that_cannot_be_compared_is_told(tmp_path):
    given = {"rules": lambda quota: [Limited(Limit(3))] if quota else [], "outcomes": None}
    study = sweep(tmp_path / "a", person, {"quota": [3], "chance": [0.9]}, vary_from=FROM, before={"quota": 4}, **given)
    assert study.to_pandas().error.str.contains("this rule has an attribute that cannot be compared").all()


def test_a_beginning_is_run_once_for_each_replicate_and_the_other_parameters(tmp_path):
    file = tmp_path / "steps"

    def counted(me, inbox, *, chance, mood):
        if me.id == 0:
            with file.open("a") as steps:
                steps.write(f"{me.step}\n")
        gossip(me, inbox, chance)

    parameters = {"chance": [0.1, 0.2, 0.3, 0.4, 0.5], "mood": [1, 2]}
    study = sweep(tmp_path / "a", counted, parameters, vary_from=FROM, before={"chance": 0.5})
    counts = Counter(int(line) for line in file.read_text().splitlines())
    assert counts == {step: 4 if step < FROM else 20 for step in range(UNTIL)}
    assert len(study) == 20
    again = sweep(tmp_path / "a", counted, parameters, vary_from=FROM, before={"chance": 0.5})
    assert table(again).equals(table(study))
    assert Counter(int(line) for line in file.read_text().splitlines()) == counts
    grown = sweep(tmp_path / "a", counted, parameters | {"mood": [1, 2, 3]}, vary_from=FROM, before={"chance": 0.5})
    assert len(grown) == 30


def test_calls_of_the_beginning_are_paid_once(tmp_path):
    file = tmp_path / "calls"

    def ask(prompt, file):
        with Path(file).open("a") as calls:
            calls.write(f"{prompt}\n")
        report_usage(model="small", input_tokens=100, output_tokens=20)
        return prompt

    async def asks(me, inbox, *, chance):
        await me.remember(ask, f"{me.id} in {me.step}" + ("" if me.step < FROM else f" by {chance}"), str(file))

    study = sweep(
        tmp_path / "a", asks, {"chance": [0.1, 0.2, 0.3]}, vary_from=FROM, before={"chance": 0.1}, outcomes=None,
        calls=Calls(store=tmp_path / "store", cost=Price(input=1, output=5)),
    )  # fmt: skip
    prompts = file.read_text().splitlines()
    assert len(prompts) == len({*prompts}) == AGENTS * FROM + 3 * AGENTS * (UNTIL - FROM)
    for told in (study.calls, Study(study.folder).calls):
        assert told.model == len(prompts)
        assert (told.input_tokens, told.output_tokens) == (100 * len(prompts), 20 * len(prompts))
        assert (told.cost, told.currency) == (Decimal("0.0002") * len(prompts), "USD")
    tokens = f"{120 * len(prompts):,} tokens, {study.calls.cost} USD"
    assert f"{len(prompts)} calls, {study.calls.store} from the store, {tokens}, saved" in repr(study)


def test_a_beginning_that_fails_fails_its_rows_only(tmp_path):
    def fails(me, inbox, *, chance, mood):
        if me.step == 2 and mood == "bad":
            raise ValueError("no mood")
        if me.step == FROM and chance == 0.9:
            raise ValueError("no chance")

    parameters = {"chance": [0.1, 0.9], "mood": ["good", "bad"]}
    study = sweep(tmp_path / "a", fails, parameters, vary_from=FROM, before={"chance": 0.1}, outcomes=None)
    errors = study.to_pandas().set_index(["mood", "chance"]).error.sort_index()
    assert errors["bad"].str.contains("no mood").all()
    assert errors["good", 0.9].str.contains("no chance").all()
    assert errors["good", 0.1].isna().all()


def test_a_beginning_whose_worker_dies_is_run_again(tmp_path, monkeypatch):
    deaths = []

    def dies_once(template, task):
        if len(deaths) < 2:
            deaths.append(task)
            return None
        return run_packed(template, task)

    work_here(monkeypatch, dies_once)
    study = sweep(tmp_path / "a", person, {"chance": [0.1, 0.9]}, vary_from=FROM, before={"chance": 0.5})
    work_here(monkeypatch)
    whole = sweep(tmp_path / "b", changing, {"chance": [0.1, 0.9]})
    assert table(study).equals(table(whole))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"vary_from": 0, "before": {"chance": 0.5}}, r"vary_from=0 must be the number of a step, at least 1"),
        ({"vary_from": True, "before": {"chance": 0.5}}, r"vary_from=True must"),
        ({"before": {"chance": 0.5}}, r"vary_from=None must"),
        ({"vary_from": FROM}, r"before=None must be a dict of at least one parameter"),
        ({"vary_from": FROM, "before": {}}, r"before=.* must be a dict of at least one parameter"),
        (
            {"vary_from": FROM, "before": {"luck": 0.5}},
            r"before= has 'luck', which is not a parameter: parameters= has 'chance'",
        ),
        ({"vary_from": FROM, "before": {"chance": object()}}, r"before= has chance=<object"),
        ({"vary_from": UNTIL, "before": {"chance": 0.5}}, r"until=10 must be above vary_from=10"),
        (
            {"vary_from": FROM, "before": {"chance": 0.5}, "calls": Calls(budget=9)},
            r"budget=9, which counts the calls of each run",
        ),
        ({"rules": None}, r"rules=None must be a list of rules.*leave rules= out"),
        ({"rules": rules.MaxLength(3)}, r"rules=.* must be a list of rules"),
    ],
)
def test_bad_input_is_told_before_a_run(tmp_path, changed, text):
    with pytest.raises(ConfigError, match=text):
        sweep(tmp_path / "a", person, {"chance": [0.1, 0.9]}, **changed)
    assert not (tmp_path / "a").exists()


def test_what_only_the_first_step_takes_cannot_vary_later(tmp_path):
    given = {"agents": lambda count: count, "graph": None, "vary_from": FROM, "before": {"count": 3}, "outcomes": None}
    with pytest.raises(ConfigError, match="'count' in before= cannot change at step 5, because only start=, agents="):
        sweep(tmp_path / "a", lambda me, inbox: None, {"count": [3, 4]}, **given)


def test_a_row_that_ends_too_early_and_another_folder_are_told(tmp_path):
    later = {"vary_from": FROM, "before": {"chance": 0.5}}
    study = sweep(
        tmp_path / "a", person, {"chance": [0.1, 0.9]}, until=lambda chance: 4 if chance < 0.5 else 9, **later
    )
    errors = study.to_pandas().set_index("chance").error
    assert errors[0.1].str.contains("until=4 must be above vary_from=5").all()
    assert errors[0.9].isna().all()
    with pytest.raises(ConfigError, match="another study: its option 'before' is"):
        sweep(tmp_path / "a", person, {"chance": [0.1, 0.9]}, until=lambda chance: 4 if chance < 0.5 else 9)
    assert len(Study(tmp_path / "a")) == 4


def test_a_condition_ends_rows_as_whole_runs(tmp_path):
    ends = {"until": lambda now: now["heard"] >= 9, "max_steps": 30, "collect_every": 2}
    chances = {"chance": [0.3, 0.5, 0.9]}
    shared = sweep(tmp_path / "a", person, chances, vary_from=FROM, before={"chance": 0.5}, **ends)
    whole = sweep(tmp_path / "b", changing, chances, **ends)
    assert shared.to_pandas().error.isna().all()
    assert table(shared).equals(table(whole))
    assert shared.series.equals(whole.series)
    for at in (int(shared.series.step.max()) + 1, 20):
        early = sweep(tmp_path / f"{at}", person, {"chance": [0.5]}, vary_from=at, before={"chance": 0.5}, **ends)
        errors = early.to_pandas().error
        assert errors.str.contains(
            rf"until= ends the run after step \d+, but the parameters vary only from step {at}"
        ).all()
