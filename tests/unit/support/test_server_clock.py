"""The clock by which the tests step a server's time."""

import pytest


@pytest.mark.parametrize("seconds", [60, -60, -0.5, 3600.5])
def test_a_server_goes_by_the_clock_that_a_test_steps(clocked_server, server_clock, seconds):
    with clocked_server.client() as client:
        now = client.eval("return redis.call('TIME')", 0)
        server_clock.step(client, seconds)
        then = client.eval("return redis.call('TIME')", 0)
        entry = int(client.xadd("stream", {"f": 1}).split(b"-")[0])
        passed_s = int(then[0]) - int(now[0])
        assert seconds - 1 <= passed_s < seconds + 60
        assert 0 <= entry - 1000 * int(then[0]) < 60_000
