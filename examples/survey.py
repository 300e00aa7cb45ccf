"""A survey of a society: a question to all agents, answers of one type, and a reminder if an answer does not fit.

    python examples/survey.py --agents 10000

If the process that asks dies while the survey runs, `messaging.survey("moods", Mood)` in any process of the Ray cluster
goes on with the survey.
"""

import argparse

import ray
from pydantic import BaseModel, Field

from ray_messaging import Messaging
from ray_messaging.errors import Closed


class Mood(BaseModel):
    """An answer: a mood from 1 to 5, with its reason."""

    mood: int = Field(ge=1, le=5)
    why: str = Field(min_length=1)


def feel(agent, asked):
    """Answer for an agent, in place of a language model. Some agents forget the reason when they are asked first."""
    mood = 1 + agent * 7 % 5
    return {"mood": mood, "why": "" if agent % 20 == 3 and asked == 1 else "the rent" if mood < 3 else "the weather"}


@ray.remote(num_cpus=0)
def live(group):
    """Answer all questions to the agents of a group, until the experiment ends."""
    asked = {}
    while True:
        try:
            with group.fetch_messages(timeout=None) as questions:
                for agent in questions.to_ids.tolist():
                    asked[agent] = asked.get(agent, 0) + 1
                group.reply_columns(questions, [feel(agent, asked[agent]) for agent in questions.to_ids.tolist()])
        except Closed:
            return


def main():
    """Ask all agents, remind the agents whose answers do not fit, and print the moods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=2)
    options = parser.parse_args()
    with Messaging.start("survey") as messaging:
        agents = range(options.agents)
        groups = {f"group{number}": agents[number :: options.groups] for number in range(options.groups)}
        for group in messaging.create_groups(groups).values():
            live.remote(group)

        question = {"text": "How do you feel, from 1 to 5, and why?", "schema": Mood.model_json_schema()}
        survey = messaging.create_survey(Mood, question=question, survey_id="moods", timeout=60).wait()
        print(survey)
        for agent, found in list(survey.invalid.items())[:2]:
            print(f"agent {agent} answered {found.payload}: {found.reason}")
        survey.remind()
        print(survey.wait())
        moods = survey.to_pandas().groupby("answer.why")["answer.mood"]
        print(moods.agg(["count", "mean"]).to_string())


if __name__ == "__main__":
    main()
