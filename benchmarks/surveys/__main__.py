"""Surveys of 100,000 agents in two groups, and one whose researcher is killed half way.

    python -m benchmarks.surveys                      # about a minute
    python -m benchmarks.surveys --agents 1000000 --rounds 3

A survey's time is from `create_survey` to the end of `wait`, with progress: every agent is asked, answers by
`reply_columns`, and its answer is checked by a pydantic model. The killed researcher has half of the answers; then the
time is that of `messaging.survey(id, Mood)`, which reads and checks that half again. Both count each answer once, or
the benchmark fails.
"""

import argparse
import os
import signal
import time

import ray

from benchmarks.axes.society.society import cluster
from benchmarks.reports.lines import Line, as_json, show
from benchmarks.surveys.town import Mood, Researcher, Town
from ray_messaging import Messaging, Survey

SURVEY_S = 2.0  # of 100,000 agents


def survey_s(messaging: Messaging, town: Town) -> float:
    """Return the seconds of one survey."""
    answering = town.answer()
    began = time.perf_counter()
    survey = messaging.create_survey(Mood, question={"text": "How are you?"}).wait()
    took = time.perf_counter() - began
    check(survey, town.agents)
    ray.get(answering)
    messaging.remove_survey(survey.id)
    return took


def resumed_s(messaging: Messaging, town: Town, name: str) -> tuple[float, float]:
    """Kill a researcher that has half of the answers; return the seconds to have these, and then all, in another."""
    researcher = Researcher.remote()
    answering = town.answer(0.5)
    pid = ray.get(researcher.ask.remote(messaging, name))
    ray.get(answering)
    assert ray.get(researcher.seen.remote()) == town.agents // 2
    os.kill(pid, signal.SIGKILL)
    began = time.perf_counter()
    survey = messaging.survey(name, Mood)
    found = time.perf_counter() - began
    assert len(survey.answers) == town.agents // 2
    answering = town.answer(0.5)
    survey.wait()
    took = time.perf_counter() - began
    check(survey, town.agents)
    ray.get(answering)
    messaging.remove_survey(name)
    return found, took


def check(survey: Survey, agents: int) -> None:
    """Fail unless each agent has answered once, and rightly."""
    answers = survey.answers
    assert answers.keys() == set(range(agents)), repr(survey)
    assert all(found.mood == agent % 5 for agent, found in answers.items())
    assert (survey.late, survey.pending, survey.invalid) == (0, [], {}), repr(survey)


def measure(agents: int, rounds: int) -> list[Line]:
    """Measure surveys, and resumed ones, by turns, after one to warm up."""
    with Messaging.start("surveys") as messaging:
        town = Town(messaging, agents)
        survey_s(messaging, town)
        whole, found, resumed = [], [], []
        for number in range(rounds):
            whole.append(survey_s(messaging, town))
            half, all_of_it = resumed_s(messaging, town, f"resumed{number}")
            found.append(half)
            resumed.append(all_of_it)
        town.end()
    most = SURVEY_S if agents <= 100_000 else None
    part = f"{agents:,} agents"
    return [
        Line(part, "a survey, with progress", "s", whole, most),
        Line(part, "half of it read again after kill -9", "s", found),
        Line(part, "and its other half", "s", resumed),
    ]


def main() -> None:
    """Measure, and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    plan = parser.parse_args()
    with cluster():
        lines = measure(plan.agents, plan.rounds)
    if plan.json:
        print(as_json(lines))
    else:
        show(lines, "Surveys")


if __name__ == "__main__":
    main()
