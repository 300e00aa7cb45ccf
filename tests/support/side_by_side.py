"""A pytest plugin: suites run in three processes side by side, as a test waits for other processes half of its time.

`-n auto`, the default, means so; where files or tests are named, all stay in this process, and a debugger works.
Each has servers and, where it needs it, a Ray of its own. By default one of them gets all tests on Ray, as a Ray with
the experiments that tests share takes half a minute, and the others get whole files. Of chosen tests each begins with a
third, in their order; the first one that has none left takes some of another's (`--dist worksteal`).
"""

import faulthandler
import gc
import os
import sys
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from xdist.scheduler import LoadScopeScheduling

ON_RAY = ("tests/cluster/", "tests/security/test_acl.py", "tests/security/test_secrets.py")
WORKERS = 3  # on two cores and on four: many tests have processes of their own at work


def pytest_configure():
    """Keep compiled modules, whatever the environment says: hundreds of processes import the package."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_xdist_auto_num_workers(config):
    """Return 0, which is this process, where somebody looks at a few tests only."""
    named = [Path(argument.partition("::")[0]) for argument in config.args]
    return WORKERS if all(path.is_dir() for path in named) else 0


class RayApart(LoadScopeScheduling):
    """A scheduler that gives all tests on Ray to one process, and the others to any, file by file."""

    def __init__(self, config, log):
        super().__init__(config, log)
        config.option.loadscopereorder = False  # those on Ray come first, as they take longest

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return "Ray" if file.startswith(ON_RAY) else file


def pytest_xdist_make_scheduler(config, log):
    """Return None, which leaves it to `--dist`, for the long tests, most of which are on Ray, and for named files."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr == "not long"
    return RayApart(config, log) if whole else None


def pytest_collection_modifyitems(items):
    """Put the tests on Ray first: each process that has one of them starts a Ray, and experiments."""
    items.sort(key=lambda item: "ray_cluster" not in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the tests themselves, 400,000 objects, out of each search for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure():
    """Let the interpreter free them at its end: duckdb complains of what it does not."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """End the process if what follows a test hangs: once a test has failed, no plugin watches the time any more."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]  # not the one that is captured
    faulthandler.dump_traceback_later(float(item.config.getini("faulthandler_timeout")), exit=True, file=stderr)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Escape invalid UTF-8: a test's log travels between processes."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
