"""AgentScope's own Msg, in its own environment: reads its task from stdin as JSON, writes the results to stdout.

Runs in the environment that `agentscope_msg` builds, and knows nothing of ray_messaging.
"""

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path


def load():
    """Import AgentScope's message and JSON modules without its other parts, which want forty more packages."""
    root = Path(importlib.util.find_spec("agentscope").origin).parent
    for name in ("agentscope", "agentscope.message", "agentscope.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    return importlib.import_module("agentscope.message.msg").Msg, importlib.import_module("agentscope.serialize")


def described(msg):
    """Return the properties on which both sides must agree."""
    return {"dict": msg.to_dict(), "plain": msg.formatted_str(), "colored": msg.formatted_str(colored=True)}


def attempted(call):
    """Return the name of the error that a call raises, or None."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return type(error).__name__
    return None


def answer(msg_class, json_texts, asked):
    """Make messages, read dicts, and try the cases that must fail."""
    return {
        "made": [described(msg_class(**args)) for args in asked["make"]],
        "read": [described(msg_class.from_dict(dict(fields))) for fields in asked["read"]],
        "made_texts": [json_texts.serialize(msg_class(**args)) for args in asked["make"]],
        "read_texts": [described(json_texts.deserialize(text)) for text in asked["texts"]],
        "bad_args": [attempted(lambda args=args: msg_class(**args)) for args in asked["bad_args"]],
        "bad_dicts": [
            attempted(lambda fields=fields: msg_class.from_dict(dict(fields))) for fields in asked["bad_dicts"]
        ],
    }


if __name__ == "__main__":
    print(json.dumps(answer(*load(), json.load(sys.stdin))))
