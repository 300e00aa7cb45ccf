"""A pytest plugin: `--skipped-into FILE` names the tests that were skipped, one a line; `pytest @FILE` runs them."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--skipped-into", type=Path, metavar="FILE", help="write the names of the skipped tests to FILE")


def pytest_configure(config):
    path = config.getoption("skipped_into")
    if path is not None and not hasattr(config, "workerinput"):  # workers report to the process that started them
        config.pluginmanager.register(_Skipped(path))


class _Skipped:
    """The names of the tests that this session has skipped."""

    def __init__(self, path):
        self._path, self._names = path, {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self._names[report.nodeid] = None

    @pytest.hookimpl
    def pytest_collectreport(self, report):
        if report.skipped:  # a module that lacks what it imports
            self._names[report.nodeid] = None

    @pytest.hookimpl
    def pytest_sessionfinish(self):
        self._path.write_text("".join(f"{name}\n" for name in self._names))
