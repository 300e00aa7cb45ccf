"""Random societies on Ray against the oracle, while groups, interceptor, log and server are killed; and their forks."""

import os
import random
import signal
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from societies import play, program
from societies.play import (
    Played,
    Told,
    answers_of,
    as_given,
    count_of,
    fates_of,
    graph_of,
    in_force,
    options_of,
    rule_of,
    states_of,
    to_come,
)
from societies.program import RADIUS
from societies.test_societies import check, check_fork, checkpoints

from ray_messaging import EventLog, Messaging, Steps
from ray_messaging.cluster.handles.connection import find_actor
from ray_messaging.common.awaitables import is_async
from ray_messaging.eventlog.folder import Folder

RAY = {"gossip", "deaths"}  # the groups of a run have the usual subtopics; here processes die
VICTIMS = ("group", "interceptor", "log", "server")


@pytest.fixture
def by_value(ray_cluster):
    """Pickle the model and the rules by value: workers cannot import them."""
    for module in (play, program):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (play, program):
        ray.cloudpickle.unregister_pickle_by_value(module)


def deaths(made, marks):
    """Return the model of a program in which some processes die, each once."""
    draw = random.Random(f"deaths {made['seed']}")
    at = {
        (draw.randrange(made["steps"]), draw.choice(made["agents"])): victim
        for victim in draw.sample(VICTIMS, draw.randint(1, 4))
    }
    model, *others = options_of(made)

    def die(exp_id, step, agent):
        victim, mark = at.get((step, agent)), Path(marks, f"{step} {agent}")
        if victim is None or mark.exists():
            return
        mark.touch()
        if victim == "group":
            os.kill(os.getpid(), signal.SIGKILL)
        if (actor := find_actor(f"{exp_id}/{victim}")) is not None:
            ray.kill(actor, no_restart=False)

    def person(me, inbox):
        die(me.shared["exp_id"], me.step, me.id)
        return model(me, inbox)

    async def thinker(me, inbox):
        await person(me, inbox)

    def crowd(group, step):
        for agent in step.agents:
            die(group.shared["exp_id"], step.number, agent)
        model(group, step)

    by_agent = thinker if is_async(model) else person
    return by_agent if made["by"] == "agent" else crowd, *others


@contextmanager
def started(made, groups, folder):
    """Start the experiment of a program, with its audiences."""
    near = {} if made["ahead"] is None else {"wait_for": "neighbours", "ahead": made["ahead"]}
    steps = Steps(seed=made["seed"], digest=True, checkpoint=made["fork"] and made["fork"]["every"], **near)
    given = [rule_of(each) for each in made["rules"]]
    with Messaging.start(folder.name, steps=steps, rules=given, log_dir=folder) as messaging:
        if made["friends"]:
            messaging.create_audience("friends", graph=made["friends"])
        messaging.create_audience("club", members=made["club"])
        ids, points = [*made["near"]], [[float(each) for each in place] for place in made["near"].values()]
        messaging.create_audience("near", positions=points, radius=RADIUS, ids=ids)
        yield messaging


def lived(messaging, made, groups, folder, model, first=0):
    """Live through a program; return what it has left."""
    for step, change, which, rule in made["changes"]:
        if first == 0 or step > first:
            given = {"insert": lambda w, r: (r, w), "replace": lambda w, r: (w, r), "remove": lambda w, r: (w,)}[change]
            call = getattr(messaging.rules, "pop" if change == "remove" else change)
            call(*given(which, rule and rule_of(rule)), at_step=step)
    function, start, collect = model
    shared = made | {"groups": min(groups, len(made["agents"])), "exp_id": messaging.exp_id}
    asked, surveys = ([], []) if first == 0 else (None, None)
    pairs = graph_of(made)
    graph = None if pairs is None else [(as_given(one), as_given(other)) for one, other in pairs]
    for step in sorted({made["steps"], *(each[0] for each in made["outside"] if first == 0)}):
        result = messaging.run(
            function, agents=[*map(as_given, made["agents"])], groups=groups, by=made["by"], start=start, shared=shared,
            collect=collect, graph=graph, progress=False, **up_to(step, collect),
        )  # fmt: skip
        for said in (given for at, *given in made["outside"] if at == step and first == 0):
            say(messaging, asked, surveys, *said)
    last = made["steps"] - 1
    counts = [messaging.steps._sealed(step) for step in range(last + 1)]
    digests = [messaging.steps.digest(step) for step in range(last + 1)]
    history, states = messaging.steps.history_digest(last), states_of([result])
    series = messaging.log.series().to_pylist()
    log = messaging.log
    if asked is not None:
        asked = [answers(*each) for each in zip(asked, to_come(made), strict=True)]
        surveys = [count_of(each) for each in surveys]
    fates = list(map(fates_of, counts))
    return Played(states, fates, digests, history, series, log, Folder(str(folder)), asked, surveys)


def up_to(step, collect):
    """Return the arguments that end a run before a step: where something is collected, a condition of it."""
    if collect is None:
        return {"until": step}
    return {"until": lambda now: now["step"] >= step - 1, "max_steps": step + 2}


def say(messaging, asked, surveys, verb, *given):
    """Do what the user does; keep what it has asked."""
    *to, text, topic = given or (None, None)
    payload = {"t": text}
    if verb == "broadcast":
        messaging.broadcast("*", payload, subtopic=topic)
    elif verb == "send":
        user = messaging._user  # messages to one agent have no call of a driver's
        user.run(user.messager.send(None, *to, payload, subtopic=topic))
    elif verb == "ask":
        asked.append(messaging.ask_columns(*to, payload, subtopic=topic, timeout=None))
    elif verb == "survey":
        found = messaging.create_survey(Told, question=payload, to=to[0], subtopic=topic, timeout=None)
        surveys.append(found)
    elif surveys:
        surveys[-1].remind()


def answers(asked, wanted):
    """Return the answers to questions, by place, once so many are there."""
    for _ in zip(range(wanted), asked, strict=False):
        pass
    return answers_of(asked)


def after(one, folder):
    one.log = EventLog.open(folder)
    return one


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [1000, 1017, *(pytest.param(n, marks=pytest.mark.soak) for n in (*range(1001, 1017), *range(1018, 1060)))]
)
def test_a_society_on_ray_whose_processes_die_does_what_the_oracle_says(by_value, tmp_path, seed):
    made, groups = program.program(seed, program.FEATURES.difference(RAY)), 1 + seed % 4
    folder = tmp_path / f"soc-{uuid.uuid4().hex[:8]}"
    with started(made, groups, folder) as messaging:
        parent = lived(messaging, made, groups, folder, deaths(made, tmp_path))
        check(made, {groups: parent})
    check(made, {groups: after(parent, folder)})
    if made["fork"] is None or not checkpoints(made):
        return
    other, into, at_step = program.forked(made), tmp_path / f"fork-{uuid.uuid4().hex[:8]}", made["fork"]["at_step"]
    begins = at_step // made["fork"]["every"] * made["fork"]["every"]
    given = [rule_of(each) for each in in_force(other, begins)]
    with Messaging.fork(folder, into.name, at_step=at_step, log_dir=into, rules=given) as messaging:
        fork = lived(messaging, other, groups, into, options_of(other), begins)
    check_fork(made, groups, parent, after(fork, into))
