"""The warnings about a server that a step waits for: soon if it refuses, later if it is silent, and when it is back."""

import logging

import pytest

from ray_messaging.transports.connection.outage import Outage

WHERE = "10.0.0.1:6379"


def refusal():
    """Return redis-py's error for a port on which nobody listens."""
    try:
        try:
            raise ConnectionRefusedError(111, "Connect call failed")
        except OSError as error:
            raise ConnectionError("Error 111 connecting") from error
    except ConnectionError as error:
        return error


@pytest.fixture
def warned(caplog):
    """Report a failure at each of some times; return at which of them something was said, and the texts."""

    def run(error, times):
        now = 0.0
        outage, said = Outage("group 'b'", 100.0, lambda: now), []
        with caplog.at_level(logging.WARNING):
            for now in times:
                before = len(caplog.records)
                outage.failed(WHERE, error)
                said += [now] * (len(caplog.records) - before)
            now = 50.0
            outage.over(WHERE)
        return said, caplog.messages

    return run


def test_a_server_that_refuses_connections_is_named_after_two_seconds(warned):
    said, texts = warned(refusal(), [10, 11, 12, 13, 20])
    assert said == [12]
    assert texts == [
        "the server at 10.0.0.1:6379 refuses connections for 2 s, and the step of group 'b' waits for it, up to 100 s "
        "(MessagingConfig.cut_timeout_s): check the server, and the network to it",
        "group 'b' reaches the server at 10.0.0.1:6379 again, after 40 s",
    ]


def test_a_silent_server_is_named_after_five_seconds_and_again_after_thirty(warned):
    said, texts = warned(TimeoutError(), [0, 2, 4, 5, 20, 34, 35, 36])
    assert said == [5, 35]
    assert "gives no answer for 35 s" in texts[1]


def test_nothing_is_said_of_a_short_outage(warned):
    assert warned(refusal(), [49]) == ([], [])
