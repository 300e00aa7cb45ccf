"""The versions of audiences in the directory: durable, in order, and since which step each counts."""

import pytest

from ray_messaging.addressing.directory import Directory
from ray_messaging.audiences.audience_kinds import AudienceFacts, AudienceKind, encode_facts
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.transports.step_values import Closing, Driver, Opened, StepSettings

FACTS = encode_facts(AudienceFacts(AudienceKind.GRAPH, 3, "aa"))
OTHER = encode_facts(AudienceFacts(AudienceKind.GRAPH, 4, "bb"))


async def known(transport):
    directory = Directory(transport.exp_id)
    directory.update(*await transport.load_directory(-1))
    return directory


async def test_a_version_follows_the_one_before_it_also_over_a_removal(transport):
    assert await transport.set_audience("friends", 1, FACTS) == 0
    before = await known(transport)
    found = before.audiences.of("friends")
    assert (found.version, found.facts) == (1, AudienceFacts(AudienceKind.GRAPH, 3, "aa"))
    assert await transport.set_audience("friends", 1, FACTS) == 0  # a repeated call
    assert (await known(transport)).version == before.version
    assert await transport.set_audience("friends", 1, OTHER) is None  # another process was faster
    assert await transport.set_audience("friends", 3, OTHER) is None
    assert await transport.set_audience("friends", 2, OTHER) == 0
    after = await known(transport)
    assert after.version > before.version
    assert (after.audiences.of("friends").version, after.audiences.of("friends", 0).version) == (2, 2)
    await transport.set_audience("plaza", 1, '{"kind": "shells"}')
    await transport.set_audience("friends", 3, "")
    audiences = (await known(transport)).audiences
    assert (audiences.names(), audiences.last_version("friends")) == (["plaza"], 3)
    with pytest.raises(UnknownName, match="'friends' was removed") as caught:
        audiences.of("friends")
    assert (caught.value.kind, caught.value.value) == ("audience", "friends")
    with pytest.raises(UnknownName, match=r"there is no audience 'street': .* that exists: 'plaza'"):
        audiences.of("street")
    with pytest.raises(ConfigError, match="'plaza' was made by a later release"):
        audiences.of("plaza")
    assert await transport.set_audience("friends", 1, FACTS) is None
    assert await transport.set_audience("friends", 4, FACTS) == 0


async def test_in_steps_a_version_counts_for_the_next_step_that_opens(transport):
    steps = transport.steps
    await steps.begin(StepSettings())
    assert await transport.set_audience("friends", 1, FACTS) == 0
    await steps.join("east")
    taken = await steps.take("east", Driver("task", 0), 30.0)
    for step in range(3):
        assert isinstance(await steps.open("east", taken.attempt, step), Opened)
        if step < 2:
            await steps.close("east", taken.attempt, step, Closing(0), go_on=False)
    assert await transport.set_audience("friends", 2, OTHER) == 3  # step 2 is open
    audiences = (await known(transport)).audiences
    assert [audiences.of("friends", step).version for step in (0, 2, 3, 9)] == [1, 1, 2, 2]
    assert audiences.of("friends").version == 2
    assert await transport.set_audience("friends", 3, "") == 3
    audiences = (await known(transport)).audiences
    assert audiences.of("friends", 2).version == 1
    with pytest.raises(UnknownName, match="removed"):
        audiences.of("friends", 3)
