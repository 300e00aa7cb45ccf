"""Ray's names that are not public, and its calls that start Ray, are each in one module."""

import re
from pathlib import Path

import pytest

import ray_messaging

PACKAGE = Path(ray_messaging.__file__).parent
PRIVATE = r"ray\._private|_raylet|ray\.core|core\.generated|internal_kv|ray\.util\.client|_get_local_state|_actor_id\b"
# Ray starts itself in these. `.remote` does, too; the handles that we keep are OurActor.
STARTING = r"\bray\.(get|wait|put|kill|cancel|get_actor|get_runtime_context|util\.list_named_actors)\("


@pytest.mark.parametrize(
    ("names", "place", "free"),
    [(PRIVATE, "cluster/ray_internals.py", ()), (STARTING, "cluster/ray_calls.py", ("cluster/ray_internals.py",))],
)
def test_no_other_module_uses_them(names, place, free):
    found = []
    for path in PACKAGE.rglob("*.py"):
        within = str(path.relative_to(PACKAGE))
        # What runs in an actor always has its Ray.
        if within == place or within in free or (names == STARTING and within.startswith("cluster/actors/")):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("#")[0]
            if re.search(names, code) and "get_actor_id" not in code:
                found.append(f"{within}:{number}: {line.strip()}")
    assert not found
    assert re.search(names, (PACKAGE / place).read_text())
