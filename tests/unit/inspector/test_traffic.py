"""The last minute of traffic, second by second."""

from collections import Counter

from ray_messaging.inspector.sources.traffic import Key, RollingTraffic, scaled, unit_for

SENT = Key("delivered", None, "west", "east")
STOPPED = Key("blocked", "no", "west", None)


def test_seconds_pass_out_of_the_period():
    rolling = RollingTraffic(10)
    rolling.add({100.0: Counter({SENT: 3})})
    rolling.add({100.0: Counter({SENT: 2, STOPPED: 1}), 105.0: Counter({SENT: 1})})
    seen = rolling.traffic(105.5, 7, 1.0)
    assert (seen.start, seen.bins, seen.messages, seen.rows) == (96.0, 10, 7, 7)
    assert seen.fates["delivered"] == [0, 0, 0, 0, 5, 0, 0, 0, 0, 1]
    assert seen.seconds == 6  # since the first message
    assert (seen.blocked, seen.blocked_from) == ({"no": [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]}, {"west": 1})
    later = rolling.traffic(112.0, 7, 1.0)
    assert (later.messages, later.fates["delivered"]) == (1, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
    rolling.forget(130.0)
    assert rolling.traffic(130.0, 7, 1.0).messages == 0


def test_messagers_without_a_name_are_one():
    rolling = RollingTraffic(5)
    rolling.add({1.0: Counter({Key("delivered", None, f"anon-{n}", "west"): 1 for n in range(3)})})
    assert rolling.traffic(1.0, 0, 1.0).flows == [("(unnamed)", "west", 3)]


def test_a_sample_is_scaled_to_all_rows():
    assert scaled({1.0: Counter({SENT: 10})}, 0.25) == {1.0: Counter({SENT: 40})}
    assert scaled({1.0: Counter({SENT: 10})}, 1.0) == {1.0: Counter({SENT: 10})}


def test_bins_fit_the_period():
    assert [unit_for(seconds)[0] for seconds in (0, 900, 901, 86_400, 10**7)] == [
        "second",
        "second",
        "minute",
        "hour",
        "day",
    ]


def test_rules_beyond_the_first_are_drawn_together():
    rolling = RollingTraffic(5)
    rolling.add({1.0: Counter({Key("blocked", f"rule-{n}", "west", None): n + 1 for n in range(20)})})
    seen = rolling.traffic(1.0, 0, 1.0)
    assert len(seen.blocked) == 9
    assert sum(map(sum, seen.blocked.values())) == sum(range(21))
