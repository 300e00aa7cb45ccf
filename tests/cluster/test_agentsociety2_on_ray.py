"""A society of AgentSociety 2 on Ray: processes of its agents and of its space are killed, and the log has all once."""

import importlib.util
import json
from collections import Counter

import pytest
from support.own_driver import Driver

from ray_messaging import EventLog

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("agentsociety2") is None,
        reason="AgentSociety 2 is not here: pip install --group agentsociety2",
    ),
]

SCRIPT = """
import json, os
from pathlib import Path
from ray_messaging import Messaging, rules
from support.scripted_society import Society

home = Path(os.environ["TMPDIR"])
society = Society(home)
for name in ("calm", "killed"):
    listed = [rules.BlackList([(2, 3)]), rules.Pattern(regexes=[r"\\d{16}"], action="mask", name="cards")]
    with Messaging.start(name, rules=listed, log_dir=home / "logs" / name):
        if name == "killed":
            (home / "kill the agents").touch()
            (home / "kill the space").touch()
        heard = society.run(name, experiment=name)
        if name == "killed":
            heard |= society.run(name, experiment=name, resume=True)
    (home / f"{name}.json").write_text(json.dumps(heard))
"""


def rows(log):
    """Return what each pair has said, in order, with its fates."""
    said = {}
    for row in sorted(log.query().to_pylist(), key=lambda row: row["position"]):
        text = json.loads(row["payload_before"] or row["payload"])["content"]
        said.setdefault((row["from_id"], row["to_id"]), []).append((text, row["fate"], row["rule"]))
    return said


def test_a_society_whose_processes_die_says_the_same_and_nothing_twice(home):
    code, errors = Driver(SCRIPT, home).wait_end()
    assert code == 0, errors
    assert not [*home.glob("kill the *")]
    calm, killed = [EventLog.open(home / "logs" / name) for name in ("calm", "killed")]
    assert Counter(killed.balance().fates) == Counter(delivered=88, blocked=8)
    assert rows(calm) == rows(killed)
    assert {fate for _, fate, rule in rows(killed)[2, 3]} == {"blocked"}
    assert {rule for said in rows(killed).values() for _, fate, rule in said} == {"black_list", "cards"}
    heard = [json.loads((home / f"{name}.json").read_text()) for name in ("calm", "killed")]
    assert heard[0] == heard[1]
    for (_, to), said in rows(killed).items():
        for text, fate, _ in said:
            hour = int(text.split("at ")[1].split(",")[0])
            if hour < 11:
                texts = json.loads(heard[1][f"{hour + 1} {to}"])
                assert texts.count(text.replace("1234" * 4, "***")) == (fate == "delivered")
