"""guides/machines.md, followed to the letter on three hosts."""

import re
import shutil

import pytest
from support.hosts import ROOT, Hosts

pytestmark = pytest.mark.long  # Ray on three hosts

SOCIETY = """
import ray
from ray_messaging import Messaging, Steps


def person(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 6, {"n": me.step})


with Messaging.start("society", log_dir="society", steps=Steps()) as messaging:
    states = messaging.run(person, agents=6, groups=3, until=3, progress=False).states
    print(len(ray.nodes()), *(states[agent]["heard"] for agent in range(6)))
"""


@pytest.mark.parametrize("token", ["with a token", "without a token"])
def test_the_commands_of_the_guide_work_as_printed(token):
    lines = (ROOT / "docs/guides/machines.md").read_text().split("```\n")[1].splitlines()
    commands = [re.fullmatch(r"([abc])\$ (.*?)( +#.*)?", line).groups()[:2] for line in lines]
    if token == "without a token":
        of_token = ("ray get-auth-token", "scp ", "export RAY_AUTH_MODE")
        commands = [(host, command) for host, command in commands if not command.startswith(of_token)]
    commands[-1:-1] = [("c", command) for host, command in commands if host == "b"]
    said = dict.fromkeys("abc", "")  # what was exported in each shell
    with Hosts() as hosts:
        hosts.path("a", "/tmp/home/society.py").write_text(SOCIETY)
        for host, command in commands:
            if command.startswith("export "):
                said[host] += f"{command}; "
            elif command.startswith("scp "):  # no sshd runs on the hosts
                for other in "bc":
                    shutil.copytree(hosts.path("a", "/tmp/home/.ray"), hosts.path(other, "/tmp/home/.ray"))
            else:
                told = hosts.shell(host, said[host] + command, cwd="/tmp/home")
    assert told.splitlines()[-1] == "3 2 2 2 2 2 2"
