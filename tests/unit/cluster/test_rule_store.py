"""The state of rules on the server, under any rule name."""

from ray_messaging import rules
from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.transports.experiment_store import RedisExperimentStore, StateChanges, TableChanges
from ray_messaging.transports.transport import RedisTransport


async def test_rules_with_confusable_names_keep_separate_tables(valkey_config, exp_id):
    transport = RedisTransport(valkey_config, exp_id, patience_s=5)
    await transport.connect()
    try:
        await transport.link.command("HSET", transport.keys.meta, "start:interceptor", 2)
        store = RuleStore(RedisExperimentStore(transport), exp_id, "run")
        counts = {"quota": TableChanges({b"1": b"1"}, []), "quota:2": TableChanges({b"7": b"7"}, [])}
        await store.save(2, StateChanges(counts, {}, []))
        await store.save(2, StateChanges({"quota": TableChanges({b"1": b"5"}, [], cleared=True)}, {}, []))
        named = [rules.RateLimit(per_round=1, name=name) for name in counts]
        tables, _ = await store.load(named)
        assert {name: tables[name] for name in counts} == {"quota": {b"1": b"5"}, "quota:2": {b"7": b"7"}}
        assert not await transport.link.command("EXISTS", transport.keys.staged("2:quota"))
    finally:
        await transport.close()
