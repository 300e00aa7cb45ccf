"""The table of fates is the only place that lists them, and keeps their codes, which frames, notes and logs have."""

import re
from pathlib import Path

import ray_messaging
from ray_messaging.model.fates import FATES, IS_SENT, IS_STORED, NAMES, UNKNOWN, facts_of


def test_codes_and_what_they_say():
    assert FATES[:4] == ("delivered", "published", "undeliverable", "blocked")
    assert IS_SENT[:4].tolist() == [True, True, False, False]
    assert IS_STORED[:4].tolist() == [True, False, False, False]
    assert (NAMES[UNKNOWN], IS_SENT[UNKNOWN], facts_of("unknown").meaning) == ("unknown", False, "")


def test_only_the_table_lists_fates():
    package = Path(ray_messaging.__file__).parent
    name = re.compile(f"""["']({"|".join(FATES)})["']""")
    listing = [path for path in package.rglob("*.py") if len({*name.findall(path.read_text())}) > 1]
    assert [str(path.relative_to(package)) for path in listing] == ["model/fates.py"]
