"""Compare `ray_messaging.Msg` with AgentScope 0.1.0's: each reads the other's output, both refuse the same.

    python -m benchmarks.compat.agentscope_msg [--write tests/unit/compat/agentscope_msgs.json]

Builds an environment with AgentScope in a temporary folder, so it needs a package index. Exits with 1 on a difference.
`--write` keeps AgentScope's output as the fixture of the default tests.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import msgspec

from ray_messaging import Msg
from ray_messaging.compat.msg import msg_of
from ray_messaging.model.columns import encode_payload

AGENTSCOPE = "agentscope==0.1.0"
NEEDED = ("loguru==0.6.0", "psutil", "requests")  # all that its message module imports
SIDE = Path(__file__).with_name("agentscope_side.py")

MAKE = {
    "text": {"name": "A", "content": "B", "role": "assistant"},
    "user": {"name": "Ann", "content": "hello", "role": "user"},
    "system": {"name": "System", "content": "You are a helpful assistant.", "role": "system"},
    "unicode": {"name": "陈静", "content": '你好 🌍 \u2028 naïve\nsecond line \x1b[0m " \\', "role": "user"},
    "empty": {"name": "", "content": "", "role": "user", "url": "", "metadata": ""},
    "nested": {"name": "tool", "content": {"a": [1, 2.5, None, {"b": [True, "x"]}], "": {}}, "role": "assistant"},
    "list": {"name": "A", "content": [{"type": "text", "text": "hi"}, []], "role": "assistant"},
    "number": {"name": "A", "content": -17, "role": "user"},
    "none": {"name": "A", "content": None, "role": "user"},
    "url": {"name": "B", "content": "look", "role": "user", "url": "https://example.org/a.png"},
    "urls": {"name": "C", "content": "look", "role": "user", "url": ["https://example.org/a.png", "/tmp/b c.wav"]},
    "no urls": {"name": "D", "content": "look", "role": "user", "url": []},
    "metadata dict": {"name": "E", "content": "x", "role": "user", "metadata": {"score": 0.5, "tags": ["a", "ü"]}},
    "metadata str": {"name": "F", "content": "x", "role": "user", "metadata": "said in anger"},
    "everything": {
        "name": "G",
        "content": {"k": "v"},
        "role": "system",
        "url": ["u"],
        "metadata": {"a": {}},
        "echo": False,
    },
}
BAD_ARGS = [
    {"name": "A", "content": "B", "role": role} for role in ("admin", "User", "", None, 1, ["user"], {"user": 1})
] + [{"name": "A", "content": "B"}, {"name": "A", "role": "user"}, {"content": "B", "role": "user"}]


def bad_dicts():
    """Return dicts that neither side may accept, by their error."""
    good = Msg(**MAKE["text"]).to_dict()
    found = {f"without {gone}": {key: value for key, value in good.items() if key != gone} for gone in good}
    for key, value in (
        ("extra", 1),
        ("role", "admin"),
        ("__module__", "os"),
        ("__name__", "system"),
        ("__name__", None),
    ):
        found[f"{key}: {value!r}"] = good | {key: value}
    return found


def theirs(asked):
    """Ask AgentScope, in an environment that is made for it."""
    with tempfile.TemporaryDirectory(prefix="agentscope-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *NEEDED], check=True)
        subprocess.run([*pip, "--no-deps", AGENTSCOPE], check=True)
        run = subprocess.run([python, SIDE], input=json.dumps(asked), capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"AgentScope's side failed:\n{run.stderr}")
        return json.loads(run.stdout)


def described(msg):
    """Return the properties on which both sides must agree."""
    return {"dict": msg.to_dict(), "plain": msg.formatted_str(), "colored": msg.formatted_str(colored=True)}


def refused_as(name, call):
    """Return whether ours raises the error that a caller of AgentScope catches."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return name in [kind.__name__ for kind in type(error).__mro__]
    return False


def compare(answer, ours):
    """Return rows (subject, case, whether both agree)."""
    for which, read in zip(MAKE, answer["read"], strict=True):
        yield "AgentScope reads ours", which, read == described(ours[which])
    for which, made in zip(MAKE, answer["made"], strict=True):
        yield "ours reads AgentScope's", which, described(Msg.from_dict(made["dict"])) == made
    for which, read in zip(MAKE, answer["read_texts"], strict=True):
        yield "AgentScope reads our wire", which, read == described(ours[which])
    for which, text in zip(MAKE, answer["made_texts"], strict=True):
        read = msg_of(msgspec.json.decode(text))
        yield "ours reads AgentScope's text", which, read is not None and read.to_dict() == json.loads(text)
    for args, name in zip(BAD_ARGS, answer["bad_args"], strict=True):
        yield f"both refuse, {name}", f"Msg(**{args})", refused_as(name, lambda args=args: Msg(**args))
    for (what, fields), name in zip(bad_dicts().items(), answer["bad_dicts"], strict=True):
        yield (
            f"both refuse, {name}",
            f"from_dict, {what}",
            refused_as(name, lambda fields=fields: Msg.from_dict(fields)),
        )


def main():
    """Compare, print a table, and exit with 1 on a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="keep what AgentScope wrote in this file")
    options = parser.parse_args()
    ours = {which: Msg(**args) for which, args in MAKE.items()}
    asked = {
        "make": list(MAKE.values()),
        "read": [msg.to_dict() for msg in ours.values()],
        "texts": [encode_payload(msg, 10**6).decode() for msg in ours.values()],
        "bad_args": BAD_ARGS,
        "bad_dicts": list(bad_dicts().values()),
    }
    answer = theirs(asked)
    rows = list(compare(answer, ours))
    for what, which, agree in rows:
        print(f"{'same' if agree else 'DIFFERENT':10}{what:34}{which}")
    differences = sum(not agree for _, _, agree in rows)
    print(f"{len(rows)} compared, {differences} different")
    if options.write is not None:
        kept = [{"args": args} | made for args, made in zip(MAKE.values(), answer["made"], strict=True)]
        options.write.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
