"""A local run with a log whose process may be killed in a step: `python -m support.resumed_run FOLDER STEP AGENT`."""

import os
import signal
import sys
from pathlib import Path

from ray_messaging import Mean, run
from ray_messaging.interception.rules import ALLOW, RateLimit, Rule, SenderBan, StepRule, StepVerdicts, block

AGENTS, STEPS = 6, 9


class Sevens(Rule):
    """A rule that blocks the words that end with a 7. `SenderBan` counts its verdicts over the steps."""

    name = "sevens"
    needs_payload = True

    def check(self, message):
        return block("no such word") if message.payload["word"].endswith("7") else ALLOW


class Every(StepRule):
    """A rule on whole steps, which blocks the messages of agent 3."""

    name = "every"

    async def check_step(self, number, batch, exp_id):
        ids = batch.from_ids.tolist()
        return StepVerdicts({row: block("three") for row, agent in enumerate(ids) if agent == 3})


def resumed(folder, dies=(-1, -1), *, of_steps=False, **changed):
    """Run the model; agent `dies[1]` kills the process in step `dies[0]`, after it has sent and called."""

    async def chat(me, inbox):
        heard = me.state.get("heard", 0) + sum(int(message.payload["word"]) for message in inbox)
        me.state["heard"] = (heard + int(me.rng.integers(9))) % 1000
        me.state["answer"] = await me.remember(answer, me.id, me.step)
        for later in (1, 3):
            me.send(int(me.rng.integers(AGENTS)), {"word": str(me.state["heard"])}, deliver_at=me.step + later)
        if (me.step, me.id) == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    async def answer(agent, step):
        note(f"{agent} {step}\n")
        return agent * step

    def note(line):
        with Path(f"{folder}-asked").open("a") as file:
            file.write(line)

    rules = [SenderBan(Sevens(), after=2), RateLimit(per_round=3), *([Every()] if of_steps else [])]
    asked = {"agents": AGENTS, "until": STEPS, "seed": 4, "rules": rules, "collect": Mean("heard"), "groups": 2}
    return run(chat, log_dir=folder, progress=False, **asked | changed)


if __name__ == "__main__":
    resumed(sys.argv[1], (int(sys.argv[2]), int(sys.argv[3])), of_steps="rules" in sys.argv)
