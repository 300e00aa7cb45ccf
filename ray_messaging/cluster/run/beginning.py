"""The state of a local run between two steps, from which other local runs can go on."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ray_messaging.cluster.run.content_digest import content_digest
from ray_messaging.config import MessagingConfig
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import ConfigError
from ray_messaging.interception.interceptor.interceptor import OWN_TABLES, Interceptor
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.rules.pairs import Edges
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.transports.transport import RedisTransport


class Beginning(msgspec.Struct, array_like=True):
    """The state of a run before its step `step`, from which other runs can go on.

    `copied` has the run's data on the server, as keys, their types and their content. `memory` has, by the name of each
    rule, the rule's digest (see `told_rules`) and the values that the rule has stored. `digests` has the digests of the
    run's last steps. `supervised` is True if each step waited for the verdicts of rules for whole steps. Then the steps
    of runs that go on from here must wait, too.
    """

    step: int
    groups: list[str]
    copied: list[tuple[str, str, list[tuple[bytes, bytes]]]]
    memory: dict[str, tuple[str | None, dict[bytes, bytes]]]
    digests: dict[int, str]
    supervised: bool


decode_beginning = msgspec.msgpack.Decoder(Beginning).decode
encode_beginning = msgspec.msgpack.Encoder().encode


def told_rules(rules: Sequence[Rule]) -> dict[str, str | None]:
    """Return, by rule name, a digest of each rule with its settings and stored values (None: it has no digest).

    Call this before the rules judge messages, because judging may change their stored values.
    """
    return {rule.name: content_digest(_given(rule)) for rule in rules}


def _given(part: object) -> object:
    # Of an object of this package, `content_digest` reads only the name of the class. So such an object is replaced by
    # what it contains.
    if isinstance(part, Table):
        return sorted(part.dump().items())
    if isinstance(part, Edges):
        return part.content()
    if not isinstance(part, Rule):
        return part
    state = part.__getstate__()
    parts = {name: _given(each) for name, each in state.items()} if isinstance(state, dict) else state
    return type(part).__qualname__, parts


async def beginning_of(
    transport: RedisTransport,
    interceptor: Interceptor,
    rules: Mapping[str, str | None],
    groups: Sequence[str],
    digests: Mapping[int, str],
    step: int,
    *,
    supervised: bool,
) -> bytes:
    """Return an encoded `Beginning`: the state of a run that has ended before `step`, from which other runs can go on.

    Args: `rules` has the rules' digests from `told_rules`. `digests` has, by step, the digests of the run's last steps.
    `supervised` is True if each step waited for the verdicts of rules for whole steps.
    """
    copied = [(each.key, each.kind, [*each.content]) for each in await transport.checkpoints.read(step - 1)]
    memory = {name: (rules.get(name), {**table.dump()}) for name, table in interceptor._tables.items()}
    return encode_beginning(Beginning(step, [*groups], copied, memory, dict(digests), supervised))


async def go_on_from(
    beginning: Beginning, server: LocalServer, exp_id: str, interceptor: Interceptor, rules: Mapping[str, str | None]
) -> None:
    """Write a `Beginning`, the state of a run between two steps, to a server that no messager uses yet.

    A rule of the new run that equals a rule of the earlier run gets the values that the earlier rule had stored.

    Args: `interceptor` has the rules of the new run, and `rules` has their digests from `told_rules`.
    Raises: ConfigError if an earlier rule had stored values, but has no digest by which it could be compared with the
    rule of the same name.
    """
    for name, (digest, fields) in beginning.memory.items():
        if fields and name in rules and digest is None and name not in OWN_TABLES:
            raise ConfigError(
                f"the rule {name!r} has stored values before step {beginning.step}, and other runs can take over "
                "these values only if their rule is the same. But this rule has an attribute that cannot be compared: "
                "use only numbers, strs and lists of these as its attributes"
            )
    transport = server.open_backend().transport(exp_id, MessagingConfig())
    try:
        await transport.connect()
        await transport.checkpoints.write(_copied(beginning))
    finally:
        await transport.close()
    tables = {
        name: fields
        for name, (digest, fields) in beginning.memory.items()
        if name in OWN_TABLES or (name in rules and rules[name] == digest)
    }
    interceptor.load(tables, {}, merge=False)


def _copied(beginning: Beginning) -> Any:  # noqa: ANN401 - CopiedKeys
    from ray_messaging.transports.checkpoints import CopiedKey  # noqa: PLC0415 - only runs that go on need it

    return [CopiedKey(*each) for each in beginning.copied]
