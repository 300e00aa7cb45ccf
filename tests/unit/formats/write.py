"""Write what this version writes: frames, and the folder of a run. It was called once, for format 1.

    PYTHONPATH=.:tests python tests/unit/formats/write.py tests/unit/formats/format-1

Later versions read these files; no later version writes them anew. If a format has a new number, its files get a folder
of their own.
"""

import base64
import json
import sys
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from support.batches import any_batches
from unit.wire.test_frames import said

from ray_messaging import Calls, rules, run
from ray_messaging.wire.frames import encode

FRAMES = 12


def guess(word):
    """Return the length of a word; this is the call that agents remember."""
    return {"length": len(word)}


async def person(me, inbox):
    """Count messages; write to the next agent, to nobody, and to all."""
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.state["length"] = (await me.remember(guess, "hällo"))["length"]
    me.send((me.id + 1) % 10, {"n": me.step, "word": "hällo"})
    if me.id == 0:
        me.send("ghost", {"who": "is there"})
        me.broadcast("*", {"bell": me.step})


def frames():
    """Return frames of random batches, each with what it says."""
    found = []

    @seed(1)
    @settings(max_examples=FRAMES, database=None, suppress_health_check=list(HealthCheck))
    @given(any_batches())
    def collect(batch):
        found.append({"frame": base64.b85encode(encode(batch)).decode(), "says": repr(said(batch))})

    collect()
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    (place / "frames.json").write_text(json.dumps(frames(), indent=1) + "\n")
    result = run(
        person,
        agents=10,
        until=3,
        seed=7,
        rules=[rules.BlackList([(3, 4)])],
        collect=lambda me: {"heard": me.state["heard"]},
        calls=Calls(),
        log_dir=place / "run",
        checkpoint=2,
        progress=False,
    )
    (place / "digests.json").write_text(json.dumps(result.digests, indent=1) + "\n")
