"""A rumour among the students of CollegeMsg, forked without a change and under each kind of change, on Ray."""

import gzip
from collections import defaultdict
from hashlib import blake2b

import numpy as np
import pytest

from ray_messaging import ConfigError, EventLog, Messaging, StepFailed, Steps

STEPS, FORKED, MESSAGES, SEED = 6, 3, 9_000, 7


@pytest.fixture(scope="module")
def traffic(request):
    """Return who writes to whom: {step: (from_ids, to_ids)}."""
    path = request.config.rootpath.parent / "shared" / "data" / "collegemsg" / "CollegeMsg.txt.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent: the real traces are not part of the repository")
    with gzip.open(path, "rt") as lines:
        ends = np.array([line.split()[:2] for line in lines][:MESSAGES], int)
    return dict(enumerate(np.split(ends, STEPS)))  # a step has a part of the time


def first(me):
    return {"knows": me.id % 10 == 0}


def first_of_all(group):
    return {"knows": group.ids % 10 == 0, "word": np.zeros(len(group.ids), np.int64)}


def student(me, inbox):
    """Tell what the student knows, and a hash of all that was heard, in order."""
    for message in inbox:
        heard = f"{me.state.get('word')}/{message.from_id}/{message.payload}"
        me.state["word"] = blake2b(heard.encode(), digest_size=6).hexdigest()
        me.state["knows"] = me.state["knows"] or message.payload.get("knows", True)
    for to_id in me.shared["said"].get((me.step, me.id), ()):
        me.send(to_id, {"knows": me.state["knows"], "word": me.state.get("word"), "loud": me.shared["loud"]})


def silent(me, inbox):
    if me.id != me.shared["silent"] or me.step < FORKED:
        student(me, inbox)


def crowd(group, step):
    """Do the same for all students of a group; their hashes are numbers, which depend on the order, too."""
    messages, word, knows = step.messages, group.state["word"], group.state["knows"]
    if len(messages):
        places = np.searchsorted(group.ids, messages.to_ids)
        for place, from_id, payload in zip(places.tolist(), messages.from_ids.tolist(), messages.payloads, strict=True):
            word[place] = (word[place] * 31 + from_id * 7 + payload.get("word", 0)) % 1_000_003
            knows[place] |= payload.get("knows", True)
    said = group.shared["said"][step.number]
    from_ids, to_ids = said[np.isin(said[:, 0], group.ids)].T
    order = np.argsort(from_ids, kind="stable")
    places = np.searchsorted(group.ids, from_ids[order])
    told = [
        {"knows": known, "word": number, "loud": group.shared["loud"]}
        for known, number in zip(knows[places].tolist(), word[places].tolist(), strict=True)
    ]
    step.send_columns(from_ids[order], to_ids[order], told)


class Rumour:
    """Runs of the rumour by agent or by group, each in a folder of its own: a parent and its forks."""

    def __init__(self, folder, traffic, by):
        self.folder, self.by = folder, by
        self.students = np.unique(np.concatenate([*traffic.values()])).tolist()
        self.speaker = int(traffic[FORKED][:, 0].min())  # who says the first message of the step
        said = defaultdict(list)
        for step, ends in traffic.items():
            for from_id, to_id in ends.tolist():
                said[step, from_id].append(to_id)
        self.shared = {"said": dict(said) if by == "agent" else traffic, "loud": False, "silent": self.speaker}
        steps = Steps(seed=SEED, digest=True, checkpoint=FORKED)
        with Messaging.start(f"rumour-{by}", log_dir=folder / "parent", steps=steps) as messaging:
            self.run(messaging)
        self.log = EventLog.open(folder / "parent")

    def run(self, messaging, model=None, **shared):
        model = model or (student if self.by == "agent" else crowd)
        start = first if self.by == "agent" else first_of_all
        more = {"start": start, "by": self.by, "shared": self.shared | shared, "progress": False}
        return messaging.run(model, agents=self.students, groups=3, until=STEPS, **more)

    def fork(self, name, **options):
        """Fork the parent at a step; the new experiment has a folder of its name."""
        into = self.folder / name
        return Messaging.fork(self.folder / "parent", f"{name}-{self.by}", at_step=FORKED, log_dir=into, **options)

    def difference(self, name):
        """Return the first message of a fork that differs, which is none of the steps before the fork."""
        log = EventLog.open(self.folder / name)
        assert [log.digest(step) == self.log.digest(step) for step in range(FORKED)] == [True] * FORKED
        assert log.balance().duplicates == 0
        return log.diff(self.log)


@pytest.mark.long
@pytest.mark.parametrize("by", ["agent", "group"])
def test_a_rumour_is_forked_without_a_change_and_under_each_kind_of_change(by_value, tmp_path, traffic, by):
    rumour = Rumour(tmp_path, traffic, by)
    place = (FORKED, rumour.speaker)
    with rumour.fork("twin") as messaging:
        rumour.run(messaging)
    assert rumour.difference("twin") is None

    with rumour.fork("state", states={str(rumour.speaker): {"word": 12345}}) as messaging:
        rumour.run(messaging)
    found = rumour.difference("state")
    assert (found.step, found.agent) == place
    assert (found.mine.payload["word"] == found.theirs.payload["word"]) is False

    with rumour.fork("wrong", states={rumour.speaker: {"word": 0.5}} if by == "group" else {-1: {}}) as messaging:
        if by == "group":
            with pytest.raises(StepFailed, match=r"group.state\['word'\] is int64, which cannot hold 0.5 exactly"):
                rumour.run(messaging)
            return
        with pytest.raises(ConfigError, match="states= has -1, which is no agent of this run"):
            rumour.run(messaging)

    with rumour.fork("shared") as messaging:
        rumour.run(messaging, loud=True)
    found = rumour.difference("shared")
    assert (found.step, found.mine.payload["loud"], found.theirs.payload["loud"]) == (FORKED, True, False)

    with rumour.fork("model") as messaging:
        rumour.run(messaging, silent)
    found = rumour.difference("model")
    assert (found.step, found.agent, found.mine) == (*place, None)

    with rumour.fork("message") as messaging:
        messaging.broadcast({"knows": True})
        result = rumour.run(messaging)
    assert rumour.difference("message").step == FORKED
    assert all(state["knows"] for state in result.states.values())
