"""State of rules over restarts: under any rule name, and in a table of the user's own."""

from support.cluster import fates, kill

from ray_messaging import rules
from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.transports.experiment_store import RedisExperimentStore, StateChanges, TableChanges
from ray_messaging.transports.transport import RedisTransport


async def test_rules_with_confusable_names_keep_separate_tables(valkey_config, exp_id):
    transport = RedisTransport(valkey_config, exp_id, patience_s=5)
    await transport.connect()
    try:
        await transport.link.command("HSET", transport.keys.meta, "interceptor", 2)
        store = RuleStore(RedisExperimentStore(transport), exp_id, "run")
        counts = {"quota": TableChanges({b"1": b"1"}, []), "quota:2": TableChanges({b"7": b"7"}, [])}
        await store.save(2, StateChanges(counts, {}, []))
        await store.save(2, StateChanges({"quota": TableChanges({b"1": b"5"}, [], cleared=True)}, {}, []))
        named = [rules.RateLimit(per_round=1, name=name) for name in counts]
        tables, _ = await store.load(named)
        assert {name: tables[name] for name in counts} == {"quota": {b"1": b"5"}, "quota:2": {b"7": b"7"}}
        assert not await transport.link.command("EXISTS", transport.keys.table(":staged:2:quota"))
    finally:
        await transport.close()


def test_a_users_table_outlives_the_interceptor(town):
    class Chattiest(rules.Rule):
        """A rule that lets each agent send a number of messages: the example of docs/rules.md."""

        def __init__(self, limit):
            self.limit = limit
            self.state = rules.Table()

        def check(self, message):
            said = self.state.get(message.from_id, 0)
            if said >= self.limit:
                return rules.block(f"said {said} things already")
            self.state[message.from_id] = said + 1
            return rules.ALLOW

    messaging, west, _ = town(Chattiest(2))
    assert fates(west.send_columns([1, 1, 2], [11, 12, 11], {})) == ["delivered"] * 3
    kill(messaging.interceptor)
    assert fates(west.send_columns([1, 2, 2], [11, 11, 11], {})) == ["blocked", "delivered", "blocked"]
