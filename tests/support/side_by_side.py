"""A pytest plugin: suites run in two processes side by side, as every second test waits for another process.

`-n auto`, the default, means so; where files or tests are named, all stay in this process, and a debugger works.
Each begins with one half of the tests, in their order; the first one that has none left takes some of the other's
(`--dist worksteal`). Each has servers and, where it needs it, a Ray of its own.
"""

from pathlib import Path

import pytest

WORKERS = 2  # on four cores, too: many tests have processes of their own at work


def pytest_xdist_auto_num_workers(config):
    """Return 0, which is this process, where somebody looks at a few tests only."""
    named = [Path(argument.partition("::")[0]) for argument in config.args]
    return WORKERS if all(path.is_dir() for path in named) else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Escape invalid UTF-8: a test's log travels between processes."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
