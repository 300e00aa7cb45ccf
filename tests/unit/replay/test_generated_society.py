"""Generated traffic: the same for the same seed, heavy-tailed, more within groups than across."""

import numpy as np
import pytest

from ray_messaging.errors import ConfigError
from ray_messaging.replay.generated_society import WITHIN, generate
from ray_messaging.replay.replay_plan import Plan


def test_a_society():
    society = generate(1000, 4, 50_000, seed=3)
    traffic = society.traffic
    assert (len(traffic), len(traffic.texts), len(traffic.agents)) == (50_000, 50_000, 1000)
    assert Plan(traffic, society.group_of).sizes == [250] * 4
    assert not (traffic.sources == traffic.targets).any()
    assert (np.diff(traffic.times) >= 0).all()
    within = (society.group_of[traffic.sources] == society.group_of[traffic.targets]).mean()
    assert WITHIN < within < WITHIN + 0.2
    written = np.sort(np.bincount(traffic.sources, minlength=1000))
    assert written[-100:].sum() > 0.3 * len(traffic)
    assert society.black_list[0] == (society.silenced, None)
    assert len(set(society.black_list)) == 21


def test_the_seed_decides():
    first, again, other = generate(50, 2, 1000), generate(50, 2, 1000), generate(50, 2, 1000, seed=2)
    assert first.traffic.sources.tolist() == again.traffic.sources.tolist() != other.traffic.sources.tolist()
    assert first.traffic.texts == again.traffic.texts
    assert first.black_list == again.black_list


@pytest.mark.parametrize("messages", [1, 3])
def test_the_smallest_society(messages):
    assert len(generate(4, 2, messages).traffic) == messages


def test_too_few_agents():
    with pytest.raises(ConfigError, match="at least two agents to a group"):
        generate(7, 4, 10)
