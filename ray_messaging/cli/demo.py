"""The `demo` command: a society on generated traffic, filtered by a black list."""

from ray_messaging.cli.options import Agents, DemoGroups, JsonFile, LogDir, Messages, Redis, Seed, Ui
from ray_messaging.cli.session import check_outputs, clean_errors, finish, output, run
from ray_messaging.cli.ui import check_extra
from ray_messaging.errors import ConfigError
from ray_messaging.interception.rules import BlackList
from ray_messaging.replay.plan import Plan
from ray_messaging.replay.society import generate

NEXT = """
Try next:
  ray-messaging demo --agents 10000 --json account.json
  ray-messaging demo --log-dir town-log && ray-messaging log stats town-log
  ray-messaging demo --log-dir seen-log --ui (the same in the browser)
  ray-messaging replay TRACE --groups 4      (your own file: edge list, CSV or JSONL)
  ray-messaging replay TRACE --rules 'black-list:1-2,3-*' --rules max-length:500
In Python: from ray_messaging import Messaging (docs/tutorial.md)"""


def demo(
    agents: Agents = 1000,
    groups: DemoGroups = 4,
    messages: Messages = 1_000_000,
    redis: Redis = None,
    json_file: JsonFile = None,
    log_dir: LogDir = None,
    ui: Ui = False,
    seed: Seed = 1,
) -> None:
    """Run a society of agents that send each other messages, with a black list, and show the result."""
    with clean_errors():
        if ui and log_dir is None:
            raise ConfigError("the inspector shows the messages of a log: add --log-dir demo-log to --ui")
        if ui:
            check_extra()
        check_outputs(json_file, log_dir)
        society = generate(agents, groups, messages, seed=seed)
        plan = Plan(society.traffic, society.group_of)
        console = output()
        console.print(
            f"Demo: {agents:,} agents in {groups} groups (a Ray actor each) send {messages:,} messages to each other. "
            f"A black list blocks all messages of agent {society.silenced}, and those of "
            f"{len(society.black_list) - 1} pairs."
        )
        rules = [BlackList(society.black_list)]
        outcome = run(console, plan, rules, redis, purpose="demo", probe=True, log_dir=log_dir, ui=ui)
        console.print(NEXT)
        finish(outcome, json_file, {"agents": agents, "seed": seed})
