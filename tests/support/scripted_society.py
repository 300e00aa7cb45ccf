"""A whole society of AgentSociety 2 with a scripted model: its own runner, its agents in Ray tasks, its router."""

import asyncio
import json
import os
import re
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

AGENTS = 6
SPACE = """
import os, signal
from pathlib import Path
from ray_messaging.compat.agentsociety2 import OrderedSocialSpace


class SimpleSocialSpace(OrderedSocialSpace):
    async def step(self, tick, t):
        await super().step(tick, t)
        if t.hour == 10 and (mark := Path(os.environ["WORKSPACE_PATH"], "kill the space")).exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)  # all is sent, and nothing saved
"""
RESIDENT = """
import os, signal
from pathlib import Path
from agentsociety2.agent import PersonAgent


class Resident(PersonAgent):
    async def step(self, tick, t):
        result = await super().step(tick, t)
        if self.id == 2 and t.hour == 9 and (mark := Path(os.environ["WORKSPACE_PATH"], "kill the agents")).exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)  # others of its batch are at work, or have saved their step
        return result
"""
OBSERVE = """
found = await modules["SimpleSocialSpace"].receive_messages(ctx["id"])
print("HEARD " + json.dumps([each["content"] for each in found.messages]))
results["status"] = "success"
"""
SEND = """
for to, text in ctx["variables"]["messages"]:
    await modules["SimpleSocialSpace"].send_message(ctx["id"], to, text)
print("They are sent.")
results["status"] = "success"
"""


class Model:
    """A server with OpenAI's interface, whose agents greet two others each hour, and quote what they have heard."""

    def __init__(self):
        self.heard = {}  # by hour and agent

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler):  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant"} | self.answer(body)}
                usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 1)
                answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
                data = json.dumps(answer | {"choices": [choice]}).encode()
                handler.send_response(200)
                handler.send_header("Content-Type", "application/json")
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                handler.wfile.write(data)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}/v1"

    def answer(self, body):
        prompt = "\n".join(str(each.get("content")) for each in body["messages"])
        if not body.get("tools"):
            return {"content": OBSERVE if "every available observe tool" in prompt else SEND}
        agent = int(re.search(r'"agent_id": (\d+)', prompt)[1])
        hour = int(re.search(r'"current_time": "\S+T(\d+)', prompt)[1])
        heard = re.search(r"HEARD (\[.*?\])\"", prompt)[1].replace("\\", "")
        if body["messages"][-1]["role"] == "tool":
            return call("finish", memories=[{"content": "I have greeted them."}])
        assert self.heard.setdefault(f"{hour} {agent}", heard) == heard
        digest = f"{zlib.crc32(heard.encode()):x}"
        texts = [f"{n} of {agent} at {hour}, card {'1234' * 4}, after {digest}" for n in range(4)]
        messages = [[(agent + n % 2) % AGENTS + 1, text] for n, text in enumerate(texts)]
        return call("ask_env", instruction="Send {messages}.", variables={"messages": messages})


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


class Society:
    """The workspace of simulations, each in a run of its own."""

    def __init__(self, folder):
        self.folder, self.model = Path(folder), Model()
        os.environ |= {
            "AGENTSOCIETY_LLM_API_KEY": "none",
            "AGENTSOCIETY_LLM_API_BASE": self.model.url,
            "WORKSPACE_PATH": str(folder),
            "AGENTSOCIETY_HOME_DIR": str(folder),
        }
        for name, text in (("custom/envs/social.py", SPACE), ("custom/agents/resident.py", RESIDENT)):
            path = self.folder / name
            path.parent.mkdir(parents=True)
            path.write_text(text)

    def run(self, name, *, resume=False, **kwargs):
        """Run a simulation of three hours with AgentSociety's own runner; return what each agent has heard."""
        from agentsociety2.society.cli import ExperimentRunner

        ids, run, self.model.heard = range(1, AGENTS + 1), self.folder / name, {}
        person = {"enable_memory": False, "enable_todo_list": False}
        kwargs = {"agent_id_name_pairs": [[each, f"a{each}"] for each in ids]} | kwargs
        config = {
            "env_modules": [{"module_type": "SimpleSocialSpace", "kwargs": kwargs}],
            "agents": [
                {"agent_id": each, "agent_type": "Resident", "kwargs": {"id": each, "name": f"a{each}"} | person}
                for each in ids
            ],
            "codegen_router": {"final_summary_enabled": False},
        }
        runner = ExperimentRunner(run)
        steps = {"start_t": "2026-01-01T08:00:00", "steps": [{"type": "run", "num_steps": 4, "tick": 3600}]}
        (run / "config.json").write_text(json.dumps(config))
        (run / "steps.yaml").write_text(json.dumps(steps))
        asyncio.run(
            runner.run(run / "config.json", run / "steps.yaml", replay_disable=True, batch_size=3, resume=resume)
        )
        return self.model.heard
