"""Limits that belong together, and the settings that begin with them."""

from ray_messaging import limits_and_timeouts as limits
from ray_messaging.config import MessagingConfig


def test_default_settings_are_the_shared_limits():
    settings = MessagingConfig()
    assert settings.mailbox_messages == limits.MAILBOX_MESSAGES
    assert settings.mailbox_bytes == limits.MAILBOX_BYTES
    assert settings.frame_rows == limits.FRAME_ROWS
    assert settings.frame_bytes == limits.FRAME_BYTES
    assert settings.dead_bytes == limits.DEAD_BYTES
    assert settings.rule_timeout_s == limits.RULE_TIMEOUT_S


def test_a_payload_fits_a_frame_and_a_batch_fits_a_transaction():
    assert MessagingConfig(payload_bytes=limits.PAYLOAD_LIMIT).payload_bytes < limits.FRAME_LIMIT
    assert limits.FRAME_BYTES <= limits.FRAME_LIMIT
    assert limits.BATCH_BYTES < limits.TRANSACTION_BYTES
