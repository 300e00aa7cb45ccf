"""The last minute of traffic, second by second."""

from collections import Counter

from ray_messaging.inspector.sources.traffic import Key, RollingTraffic, scaled, unit_for

SENT = Key("delivered")
STOPPED = Key("blocked", "no")


def test_seconds_pass_out_of_the_period():
    rolling = RollingTraffic(10)
    rolling.add({100.0: Counter({SENT: 3})})
    rolling.add({100.0: Counter({SENT: 2, STOPPED: 1}), 105.0: Counter({SENT: 1})})
    seen = rolling.traffic(105.5, 7)
    assert (seen.start, seen.messages, seen.rows) == (96.0, 7, 7)
    assert seen.fates["delivered"] == [0, 0, 0, 0, 5, 0, 0, 0, 0, 1]
    assert seen.per_second == 7 / 6  # since the first message
    assert seen.blocked == {"no": [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]}
    later = rolling.traffic(112.0, 7)
    assert (later.messages, later.fates["delivered"]) == (1, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    rolling.forget(130.0)
    assert rolling.traffic(130.0, 7).messages == 0


def test_the_last_steps_are_seen_from_the_first_one_on():
    rolling = RollingTraffic(10, in_steps=True)
    rolling.add({1: Counter({SENT: 3})})
    seen = rolling.traffic(1, 3)
    assert (seen.start, seen.in_steps, seen.per_second, seen.fates["delivered"]) == (0, True, None, [0, 3])
    rolling.add({12: Counter({SENT: 1})})
    assert (rolling.traffic(12, 4).start, rolling.traffic(12, 4).messages) == (3, 1)


def test_a_sample_is_scaled_to_all_rows():
    assert scaled({1.0: Counter({SENT: 10})}, 0.25) == {1.0: Counter({SENT: 40})}
    assert scaled({1.0: Counter({SENT: 10})}, 1.0) == {1.0: Counter({SENT: 10})}


def test_it_is_estimated_as_long_as_one_of_its_seconds_is():
    rolling = RollingTraffic(10)
    rolling.add({100.0: Counter({SENT: 10})}, 0.25)
    rolling.add({101.0: Counter({SENT: 10})})
    assert (rolling.traffic(101.0, 50).messages, rolling.traffic(101.0, 50).share) == (50, 0.25)
    assert rolling.traffic(110.0, 50).share == 1.0


def test_bins_fit_the_period():
    units = [unit_for(seconds)[0] for seconds in (0, 900, 901, 86_400, 10**7)]
    assert units == ["second", "second", "minute", "hour", "day"]


def test_rules_beyond_the_first_are_drawn_together():
    rolling = RollingTraffic(5)
    rolling.add({1.0: Counter({Key("blocked", f"rule-{n}"): n + 1 for n in range(20)})})
    seen = rolling.traffic(1.0, 0)
    assert len(seen.blocked) == 9
    assert sum(map(sum, seen.blocked.values())) == sum(range(21))
