"""What is said of nodes that the network does not reach, and of groups that the server does not hear."""

from ray_messaging.observability.health.actor_checks import check_actor
from ray_messaging.observability.health.findings import SERVER_ACTOR, ActorFacts
from ray_messaging.observability.health.node_checks import CUT_OFF, NodeFacts, check_nodes


def node(host, groups=(), **reached):
    return NodeFacts(f"id of {host}", host, f"10.0.0.{len(host)}", reached, [*groups])


def told(findings):
    return [(each.level, each.what, each.value) for each in findings]


def test_nodes_that_all_reach_are_one_good_finding():
    nodes = [node("a", process=0.1, interceptor=0.2), node("bb", process=0.7, interceptor=0.1)]
    expected = "all 2 nodes are reached by process (0.7 ms at most), interceptor (0.2 ms at most)"
    assert told(check_nodes(nodes, {})) == [("ok", "nodes", expected)]


def test_of_a_single_node_nothing_is_said():
    assert check_nodes([node("a", process=0.1)], {}) == []
    assert check_nodes([], {}) == []


def test_a_node_that_is_cut_off_is_named_with_its_groups_and_with_who_does_not_reach_it():
    nodes = [node("a", process=0.1, server=0.1), node("bb", ["north", "east"], process=None, server=1.0)]
    text = "cannot be reached over the network from process, but is reached from server in 1.0 ms"
    text = f"{text}; groups on it: 'east', 'north'"
    [finding] = check_nodes(nodes, {})
    assert told([finding]) == [("critical", "node bb (10.0.0.2)", text)]
    assert finding.remedy == CUT_OFF


def test_a_group_that_the_server_does_not_hear_is_named_with_its_node():
    nodes = [node("a", ["east"], process=0.1), node("bb", process=0.1)]
    found = {each.what: each.value for each in check_nodes(nodes, {"east": 14.2, "west": 20.0})}
    after = "the process that drives it{} has not called the server for {} s, and the open step waits for this group"
    assert found["group 'east'"] == after.format(" on node a (10.0.0.1)", 14)
    assert found["group 'west'"] == after.format("", 20)


def test_an_actor_on_a_node_that_is_cut_off_is_not_searched_for_with_a_debugger():
    facts = ActorFacts("group 'east'", state="ALIVE", where="b (10.0.0.2)", cut_off_from="this process, server")
    [finding] = check_actor(facts)
    assert (
        finding.value == "does not answer: the network does not reach its node, b (10.0.0.2), from this process, server"
    )
    assert finding.remedy == CUT_OFF
    assert "py-spy" not in str(finding)


def test_an_actor_that_is_silent_on_a_node_that_answers_is_said_to_be_there():
    facts = ActorFacts(SERVER_ACTOR, state="ALIVE", why="no answer within 5 s", where="b (10.0.0.2)")
    [finding] = check_actor(facts)
    assert finding.value == "does not answer on node b (10.0.0.2) (no answer within 5 s)"
    assert "py-spy" in str(finding)
