"""Compare our Messager with AgentSociety 1.3.7's on one Redis, and run AgentSociety's own simulation groups on ours.

    python -m benchmarks.compat.agentsociety [--keep FOLDER]

Builds an environment with AgentSociety in a temporary folder (900 MB, a few minutes), so it needs a package index;
`--keep` makes it there, or uses the one that is there. Exits with 1 on a difference.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from ray_messaging.embedded.redis_server import EmbeddedServer

ROOT = Path(__file__).parents[2]
AGENTSOCIETY = "agentsociety==1.3.7"
# The imports of its simulation, without torch, transformers, the whole of mlflow, and its web pages' needs: 5 GB that
# no message passes through.
NEEDED = (
    "json-with-comments>=1.2.10",
    "pycityproto>=2.2.7",
    "grpcio>=1.71,<2",
    "protobuf<=4.24.0",
    "numpy<2",
    "pyarrow>=17,<26",  # later ones need numpy 2, and do not say so
    "langchain-core>=0.3.28",
    "langchain-community>=0.3.13",
    "faiss-cpu>=1.9",
    "mlflow-skinny>=2.19",
    "fastavro>=1.10",
    "psycopg[binary]>=3.2.3",
    "boto3>=1.37",
    "pyproj>=3.6",
    "shapely>=2.0.6",
    "networkx>=3.2.1",
    "openai>=1.58.1",
    "PyYAML>=6.0.2",
    "psutil>=5.9",
)
AGENTS = 8
PATIENCE_S = 600
WHOSE = {"theirs": "agentsociety.message.messager", "ours": "ray_messaging.messager"}
PASSED, REFUSED = [True, False, False, True, True, True], ["refused 3 7", "refused 3 8"]
HEARD = {
    str(agent): [
        ["agent-chat", (agent + 3) % AGENTS + 1, f"I am {(agent + 3) % AGENTS + 1}"],
        ["user-chat", "user", "how are you?"],
        ["user-survey", "user", "mood"],
    ]
    for agent in range(1, AGENTS + 1)
}
LOGGED = {"agent-chat": AGENTS, "user-payback": 2 * AGENTS}


class Row(NamedTuple):
    """One comparison: its subject, its case, its count, and whether both agree."""

    what: str
    which: str
    count: int
    same: bool


def build(folder: Path) -> Path:
    """Make an environment with AgentSociety and ours, unless it is there; return its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*pip, "--no-deps", AGENTSOCIETY], check=True)
        subprocess.run([*pip, *NEEDED, ROOT], check=True)
    return python


def ask(python: Path) -> dict[str, Any]:
    """Run AgentSociety's side on a server of its own, and return its results."""
    with EmbeddedServer("127.0.0.1") as server:
        config = server.start()
        fields = config.model_dump(include={"server", "port", "password", "db", "timeout"})
        run = subprocess.run(
            [python, "-m", "benchmarks.compat.agentsociety_side"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, input=json.dumps(fields),
            stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    if run.returncode:
        sys.exit("AgentSociety's side failed: see above")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def compare(found: dict[str, Any]) -> Iterator[Row]:
    """Compare the results with the expected ones."""
    for way, kinds in found["talk"].items():
        for kind, (count, same) in kinds.items():
            yield Row(f"messages {way}", kind, count, same)
    for kind, (sent, refused) in found["intercept"].items():
        which = "its MessageInterceptor asked by " + kind
        yield Row(which, "sent or not", len(PASSED), sent == PASSED)
        yield Row(which, "refusals of the block", len(REFUSED), refused == REFUSED)
    for kinds, society in found["society"].items():
        driver, west, east = kinds.split(", ")
        which = f"its society, user: {driver}, groups: {west} and {east}"
        yield Row(which, "module of the groups' Messagers", 2, society["modules"] == [WHOSE[west], WHOSE[east]])
        heard = sum(map(len, society["heard"].values()))
        yield Row(which, "its dispatch loop: chats, interviews, surveys", heard, society["heard"] == HEARD)
        yield Row(which, "its interview and survey paid back", 2 * AGENTS, society["in time"])
        yield Row(which, "log rows of its groups", sum(society["logged"].values()), society["logged"] == LOGGED)


def main() -> int:
    """Build, compare, print a table; return 1 on a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="the environment's folder, which then stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentsociety-") as folder:
        found = ask(build(options.keep or Path(folder)))
    rows = list(compare(found))
    table = Table("compared", "what", "count", "", title=f"ray_messaging and {AGENTSOCIETY}")
    for row in rows:
        table.add_row(row.what, row.which, f"{row.count}", "same" if row.same else "DIFFERENT")
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    different = sum(not row.same for row in rows)
    print(f"{len(rows)} compared, {different} different")
    theirs, ours = (found["rate"][kind] for kind in WHOSE)
    print(f"2,000 sends at once to 200 agents: {theirs:,} messages/s theirs, {ours:,} ours ({ours / theirs:.1f} times)")
    return 1 if different or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
