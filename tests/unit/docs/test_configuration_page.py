"""Every setting has a description: in `help`, and in the tables of docs/configuration.md."""

import pydoc
from pathlib import Path

import pytest

from ray_messaging import Calls, MessagingConfig, Price, RedisConfig, Steps
from ray_messaging.compat.mqtt import MqttConfig
from ray_messaging.config import settings_of

CONFIGS = [MessagingConfig, RedisConfig, MqttConfig, Steps, Calls, Price]
UNITS = {"s": "second", "bytes": "byte", "messages": "message"}
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_field_describes_its_setting_and_unit(config):
    for setting in settings_of(config):
        assert len(setting.description) > 10, f"describe {setting.name}"
        unit = UNITS.get(setting.name.rpartition("_")[2], "")
        assert unit in setting.description, f"{setting.name}: name the unit"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_the_page_has_a_row_for_each_field_and_no_other(config):
    _, _, section = PAGE.read_text().partition(f"\n## {config.__name__}\n")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {kind.replace('|', chr(92) + '|')} | {default} | {description} |"
        for name, kind, default, description in settings_of(config)
    ]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_help_shows_the_fields_and_nothing_of_pydantic(config):
    text = pydoc.plain(pydoc.render_doc(config))
    assert "model_dump" not in text
    for name, kind, default, description in settings_of(config):
        assert f"{name} ({kind}, {default}): {description}" in text


def test_a_setting_shows_its_default_as_people_write_it():
    shown = {setting.name: setting.default for setting in settings_of(MessagingConfig)}
    assert (shown["mailbox_messages"], shown["mailbox_bytes"], shown["lease_s"]) == ("1,000,000", "256 MiB", "30 s")
    assert {setting.name: setting.default for setting in settings_of(MqttConfig)}["server"] == "required"
