"""`ray_messaging.run` gives the states, digests and fates of `messaging.run`, whatever model, rules and groups."""

import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from ray_messaging import EventLog, Messaging, Steps, rules, run

PROGRAMS = st.fixed_dictionaries(
    {
        "agents": st.integers(2, 30),
        "until": st.integers(1, 5),
        "groups": st.integers(1, 3),
        "seed": st.integers(0, 2**32),
        "sends": st.integers(0, 3),
        "by": st.sampled_from(["agent", "group"]),
        "rules": st.sets(st.sampled_from(["ban", "round", "length"])),
    }
)


def rules_of(names):
    made = {
        "ban": lambda: rules.BlackList([(0, None), (None, 1)]),
        "round": lambda: rules.RateLimit(per_round=1),
        "length": lambda: rules.MaxLength(10),
    }
    return [made[name]() for name in sorted(names)]


def model_of(program):
    agents, sends = program["agents"], program["sends"]

    def person(me, inbox):
        heard = me.state.setdefault("heard", [])
        heard += [(message.from_id, message.payload["text"]) for message in inbox]
        for _ in range(sends):
            later = int(me.rng.integers(1, 3))
            text = "x" * int(me.rng.integers(20)) + str(len(heard))
            me.send(int(me.rng.integers(agents + 1)), {"text": text}, deliver_at=me.step + later)

    def crowd(group, step):
        messages, ids = step.messages, group.ids
        heard = group.state.setdefault("heard", np.zeros(len(ids), np.int64))
        heard += np.bincount(np.searchsorted(ids, messages.to_ids), minlength=len(ids))
        for _ in range(sends):
            to_ids = (step.uniform(1)[:, 0] * agents).astype(int)
            step.send_columns(ids, to_ids, [{"text": str(count)} for count in heard.tolist()])

    return person if program["by"] == "agent" else crowd


RICH = {
    "agents": 20,
    "until": 4,
    "groups": 2,
    "seed": 7,
    "sends": 3,
    "by": "agent",
    "rules": {"ban", "round", "length"},
}


@pytest.mark.parametrize("examples", [0, pytest.param(8, marks=pytest.mark.long)])
def test_a_local_run_has_the_result_of_a_run_on_ray(by_value, examples):
    phases = tuple(Phase) if examples else [Phase.explicit]

    @settings(max_examples=max(1, examples), phases=phases, deadline=None, suppress_health_check=list(HealthCheck))
    @given(PROGRAMS)
    @example(RICH)
    def same(program):
        model, made = model_of(program), rules_of(program["rules"])
        asked = {name: program[name] for name in ("agents", "until", "by")}
        steps = Steps(seed=program["seed"], digest=True)
        with Messaging.start(f"local-{uuid.uuid4().hex[:8]}", steps=steps, rules=made) as messaging:
            on_ray = messaging.run(model, groups=program["groups"], progress=False, **asked)
        here = run(model, groups=4 - program["groups"], seed=program["seed"], rules=rules_of(program["rules"]), **asked)
        assert (here.fates, here.digests, here.steps) == (on_ray.fates, on_ray.digests, on_ray.steps)
        assert here.to_pandas().equals(on_ray.to_pandas())

    same()


@pytest.mark.long
def test_a_log_of_a_local_run_is_that_of_a_run_on_ray_and_can_be_forked(by_value, tmp_path):
    """The rules remember what they have judged, also in the fork."""
    whole, agents = {"by": "agent", "sends": 3, "agents": 12}, 12
    made = lambda: [rules.BlackList([(0, 1)]), rules.SenderBan(rules.Pattern(regexes=["x{9}"]), after=8)]  # noqa: E731
    given = {"agents": agents, "until": 12, "groups": 2, "progress": False, "collect": heard_by}
    here = run(model_of(whole), seed=5, rules=made(), log_dir=tmp_path / "here", checkpoint=4, **given)
    with Messaging.start(
        "local-log", log_dir=tmp_path / "ray", steps=Steps(seed=5, digest=True), rules=made()
    ) as messaging:
        on_ray = messaging.run(model_of(whole), **given)
    mine, theirs = EventLog.open(tmp_path / "here"), EventLog.open(tmp_path / "ray")
    assert mine.diff(theirs) is None
    assert mine.history_digest(11) == theirs.history_digest(11)
    assert mine.balance() == theirs.balance()
    assert mine.series().equals(theirs.series())
    assert (here.digests, here.fates, here.states) == (on_ray.digests, on_ray.fates, on_ray.states)
    assert here.fates["blocked"] > 20
    with Messaging.fork(
        tmp_path / "here", "local-fork", at_step=8, log_dir=tmp_path / "fork", rules=made()
    ) as messaging:
        forked = messaging.run(model_of(whole), **given)
    assert (forked.digests, forked.states) == (here.digests, here.states)
    assert EventLog.open(tmp_path / "fork").diff(mine) is None


def heard_by(me):
    return {"heard": len(me.state["heard"])}
