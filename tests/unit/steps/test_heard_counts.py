"""step.heard_counts: how many messages each agent of a group has."""

from ray_messaging import run


def test_each_group_has_the_counts_of_its_own_agents_in_their_order():
    def crowd(group, step):
        group.state["heard"] = step.heard_counts
        senders = group.ids[group.ids < 3]
        step.send_columns(senders, [4] * len(senders), {})
        if 4 in group.ids:
            step.send(4, 1, {})

    for groups in (1, {"west": [0, 1, 4], "east": [2, 3]}):
        result = run(crowd, by="group", agents=5, groups=groups, until=2)
        assert result.to_pandas()["heard"].to_dict() == {0: 0, 1: 1, 2: 0, 3: 0, 4: 3}
