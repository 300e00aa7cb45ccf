"""AgentSociety 1.3.7's own code, with its Messager and with ours: the received messages, as JSON on stdout.

Runs in the environment that `benchmarks.compat.agentsociety` builds; reads the server's config from stdin.
"""

import asyncio
import json
import logging
import sys
import time
import uuid
from collections import Counter

import ray
from agentsociety import message as seed
from agentsociety.agent import CitizenAgentBase
from agentsociety.agent.memory_config_generator import MemoryConfigGenerator
from agentsociety.configs import Config
from agentsociety.environment import EnvironmentConfig
from agentsociety.simulation import agentgroup, agentsociety
from agentsociety.survey.models import Page, Question, QuestionType, Survey

from benchmarks.compat.agentsociety_messagers import (
    KINDS,
    LLM,
    WAIT_S,
    intercept,
    messager_of,
    rate,
    subscribed,
    talk,
    until,
)

WEST, EAST = range(1, 5), range(5, 9)

# -- its simulation: AgentSociety sends surveys, AgentGroup's dispatch loop hands messages out -------------------------


class Talker(CitizenAgentBase):
    """An agent that writes to a partner, remembers its messages and answers without a model or a simulator."""

    async def _bind_to_simulator(self):
        self.heard = []

    async def _bind_to_economy(self):
        pass

    async def forward(self):
        """Write to the partner in the other group."""
        partner = self.id + len(WEST) if self.id in WEST else self.id - len(WEST)
        await self.send_message_to_agent(partner, f"I am {self.id}")

    async def process_agent_chat_response(self, payload):
        """Remember a message of another agent."""
        self.heard.append(["agent-chat", payload["from"], payload["content"]])

    async def generate_user_chat_response(self, question):
        """Answer the user."""
        self.heard.append(["user-chat", "user", question])
        return "well"

    async def generate_user_survey_response(self, survey):
        """Answer a survey."""
        self.heard.append(["user-survey", "user", survey["title"]])
        return "{}"

    async def reset(self):
        """Do nothing."""

    async def react_to_intervention(self, intervention_message):
        """Do nothing."""


class EmptyMap:
    """A map without places."""

    def get_all_pois(self):
        """Return none."""
        return []

    def get_projector(self):
        """Return one that needs no data."""
        return "+proj=merc"


def no_memory(_distributions):
    """Give an agent nothing to remember."""
    return {}, {}, {}


def group_of(kind, server, exp_id, agents):
    """Start AgentSociety's AgentGroup; `ours`: with the Messager that it imports replaced."""
    off = {"pgsql": {"enabled": False, "dsn": "-"}, "avro": {"path": "-"}, "mlflow": {"mlflow_uri": "-"}}
    config = Config.model_validate(
        {
            "llm": [LLM],
            "env": {"redis": server, **off},
            "map": {"file_path": "-"},
            "agents": {"citizens": [{"agent_class": "citizen", "number": 1}]},
            "exp": {"workflow": [{"type": "run", "days": 1}], "environment": {}},
            "advanced": {"logging_level": "WARNING"},
        }
    )
    group_class = agentgroup.AgentGroup.__ray_metadata__.modified_class
    agentgroup.Messager, config_class = KINDS[kind]
    config.env.redis = config_class(**server)
    group = ray.remote(num_cpus=0)(type("AgentGroup", (group_class,), {})).remote(
        tenant_id="",
        exp_name="compat",
        exp_id=exp_id,
        group_id=kind,
        config=config,
        agent_inits=[(agent, Talker, MemoryConfigGenerator(no_memory), 0, None) for agent in agents],
        environment_init={
            "map_data": EmptyMap(),
            "server_addr": "127.0.0.1:9",
            "environment_config": EnvironmentConfig.model_validate({}),
        },
        pgsql_writer=None,
        message_interceptor=None,
        mlflow_run_id=None,
    )
    agentgroup.Messager = seed.Messager
    return group


async def live(server, driver_kind, west_kind, east_kind):
    """Run a society of 8 through a step, an interview and a survey; return each agent's messages, and the logs."""
    exp_id = str(uuid.uuid4())
    groups = [group_of(west_kind, server, exp_id, WEST), group_of(east_kind, server, exp_id, EAST)]
    await asyncio.gather(*[group.init.remote() for group in groups])
    await subscribed(server, exp_id, [f"exps:{exp_id}:agents:{agent}:*" for agent in (*WEST, *EAST)])
    payback = f"exps:{exp_id}:user-payback"
    async with messager_of(driver_kind, server, exp_id, [payback]) as messager:
        society = agentsociety.AgentSociety.__new__(agentsociety.AgentSociety)
        society._messager = messager
        logs = [row for group in groups for row in (await group.step.remote(1)).redis_log]
        asked, options = [*WEST, *EAST], {"poll_interval": 0.1, "timeout": WAIT_S}
        began = time.monotonic()
        await society.send_interview_message("how are you?", asked, **options)
        question = Question("q", "well?", QuestionType.TEXT)
        await society.send_survey(Survey(uuid.uuid4(), "mood", "", [Page("p", [question])]), asked, **options)
        in_time = time.monotonic() - began < WAIT_S

        async def heard():
            found = await asyncio.gather(*[group.__ray_call__.remote(what_was_heard) for group in groups])
            agents = {agent: sorted(lines) for part in found for agent, lines in part[1].items()}
            return ([part[0] for part in found], agents) if sum(map(len, agents.values())) >= 3 * len(asked) else None

        modules, agents = await until(heard, "what the agents should hear")
        logs += [row for group in groups for row in (await group.__ray_call__.remote(log_of))]
    await asyncio.gather(*[group.close.remote() for group in groups])
    for group in groups:
        ray.kill(group)
    kinds = Counter(row["channel"].rpartition(":")[2] for row in logs if row["sent"])
    return {"modules": modules, "heard": agents, "in time": in_time, "logged": dict(sorted(kinds.items()))}


def what_was_heard(group):
    """Return the module of a group's Messager, and its agents' messages."""
    return type(group.messager).__module__, {agent.id: agent.heard for agent in group._agents}


def log_of(group):
    """Return a group's log list."""
    return group.messager.get_log_list()


async def main():
    """Compare everything with everything."""
    server = json.load(sys.stdin)
    answer = {
        "talk": {f"{a} -> {b}": await talk(server, a, b) for a, b in (("theirs", "ours"), ("ours", "theirs"))},
        "intercept": await intercept(server),
        "rate": {kind: await rate(server, kind) for kind in KINDS},
        "society": {},
    }
    for kinds in (("theirs",) * 3, ("ours",) * 3, ("theirs", "ours", "ours"), ("ours", "theirs", "theirs"),
                  ("theirs", "ours", "theirs")):  # fmt: skip
        answer["society"][", ".join(kinds)] = await live(server, *kinds)
    return answer


if __name__ == "__main__":
    theirs = logging.getLogger("agentsociety")
    theirs.addHandler(logging.StreamHandler())  # without one it would choose its own level
    theirs.setLevel(logging.WARNING)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    print(json.dumps(asyncio.run(main())))
