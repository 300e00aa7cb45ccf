"""A pytest plugin: the long tests that CI leaves out, since others ask the same mechanism more cheaply.

They are more kills, larger data, and further layouts; `soak.txt` beside this file has one name in each line. A line
with `#` says why those below it need not run each time, and what proves the same.
`pytest -m soak` runs them, `pytest -m long` all long tests.
"""

from pathlib import Path

import pytest

LINES = Path(__file__).with_suffix(".txt").read_text().splitlines()
NAMES = frozenset(line for line in LINES if not line.startswith("#"))


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    """Mark them; raise UsageError for one that its file has not."""
    files = {item.nodeid.partition("::")[0] for item in items}
    strange = {name for name in NAMES if name.partition("::")[0] in files}
    for item in items:
        if item.nodeid in NAMES:
            item.add_marker(pytest.mark.soak)
            strange.remove(item.nodeid)
    whole = not config.getoption("lf", default=False) and not any("::" in given for given in config.args)
    if whole and strange:
        raise pytest.UsageError(f"tests/support/soak.txt names tests that are not there: {sorted(strange)}")
