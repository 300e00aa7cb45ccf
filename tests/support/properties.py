"""A pytest plugin: a test of a property tries some examples by default, and all of them as a long test (`-m long`)."""

import pytest
from hypothesis import HealthCheck, settings

# Other processes may have the machine: nothing here depends on time.
ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def _tries_all(config):
    return "not long" not in config.option.markexpr


def pytest_configure(config):
    settings.register_profile("some", max_examples=15, **ANY_TIME)
    settings.register_profile("all", **ANY_TIME)
    settings.load_profile("all" if _tries_all(config) else "some")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    for item in items if _tries_all(config) else ():
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.long)
