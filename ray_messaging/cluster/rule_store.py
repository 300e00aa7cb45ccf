"""Durable store of the interceptor's rules. Their code is in Ray's key-value store, everything else on the server.

The server decides which rules are in force. It has the name of an entry in Ray's store, the rules' names and state, and
the record of all changes. One write changes all of these together, so only an interceptor that may write to the server
can change the rules. The event log has a copy of the record, for readers.

An entry in Ray has the pickles of the rules, and the changes that wait for their step. Pickles are never read from the
server, so that people who can write to the server cannot run code in our processes (SECURITY.md). Signed pickles on the
server would not do, because a rule may contain a password, which users of the server could read.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import Any

import ray

from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.ray_internals import kv_delete, kv_get, kv_names, kv_put
from ray_messaging.cluster.spec import PickledRule
from ray_messaging.cluster.unpicklable import unpicklable
from ray_messaging.errors import Fenced, RuleError
from ray_messaging.interception.interceptor.interceptor import OWN_TABLES
from ray_messaging.interception.interceptor.state_writer import ServerBehindError
from ray_messaging.interception.rules import Rule
from ray_messaging.interception.verdicts import INTERCEPTOR
from ray_messaging.transports.experiment_store import Fields, RedisExperimentStore, StateChanges, StateWrite

logger = logging.getLogger(__name__)


class RuleStore:
    """Durable store of the rules of an experiment and of their state, for one start of the experiment."""

    def __init__(self, server: RedisExperimentStore, exp_id: str, run: str) -> None:
        self.scheduled: list[Any] = []  # `RuleRequest`s that wait for their step, sorted by step
        self._server = server
        self._exp_id = exp_id
        self._runs = f"rules/{exp_id}/"
        self._code = f"{self._runs}{run}/"
        self._kept: str | None = None  # in Ray's key-value store, the key of the rules in force
        self._names: list[str] | None = None  # new rules for the next write to the server: their key in Ray, and names
        # For the id() of each rule in force, the rule and the rule's pickle. As long as this dict has the rule, no
        # other object gets the same id().
        self._known: dict[int, tuple[Rule, PickledRule]] = {}
        self._in_force: list[str] | None = None  # the rules that the server has now: their key in Ray, and names
        self._writing: StateChanges | None = None

    async def load(self, rules: Iterable[Rule]) -> tuple[dict[str, Fields], dict[str, bytes]]:
        """Return what the server has stored about the rules.

        The first dict has each rule's table of state, by rule name, and the interceptor's own tables. The second has
        the stored answers to senders, by batch.
        """
        names = [*OWN_TABLES, *(rule.name for rule in rules if rule.state is not None)]
        return await self._server.read_tables(names)

    async def save(self, epoch: int, kept: StateChanges) -> None:
        """Write changes of the rules' state to the server, either all of them or none.

        Raises: Fenced if there is a newer interceptor; ServerBehindError if the server has lost data.
        """
        names = self._in_force if kept.whole and self._names is None else self._names
        again, self._writing = kept is self._writing, kept
        written = await self._server.write(epoch, kept, names, again=again)
        if written is StateWrite.FENCED:
            raise _fenced(epoch)
        if written is StateWrite.BEHIND:
            raise ServerBehindError
        if names is not None:
            before, self._kept = self._kept, names[0]
            if self._names is names:  # if not, the rules have changed again, and the next write has the new ones
                self._names = None
            self._in_force = names
            if before not in {None, names[0]}:
                await asyncio.to_thread(kv_delete, before, namespace=NAMESPACE)

    async def publish_snapshot(self, epoch: int, number: int) -> None:
        """Let senders judge their messages by the copy of the rules that has this number, unless a later copy is valid.

        Raises: Fenced if there is a newer interceptor.
        """
        if await self._server.delegate(epoch, number) is StateWrite.FENCED:
            raise _fenced(epoch)

    async def beat(self, epoch: int) -> bool:
        """Write a heartbeat; return whether the server still has all data that it has confirmed.

        Raises: Fenced if there is a newer interceptor.
        """
        beat = await self._server.beat(epoch)
        if beat is StateWrite.FENCED:
            raise _fenced(epoch)
        return beat is StateWrite.DONE

    async def leave(self, epoch: int) -> None:
        """Record on the server that the interceptor has ended."""
        await self._server.end_heartbeat(epoch)

    # -- the rules themselves -------------------------------------------------------------------------------------

    def admit(self, data: PickledRule) -> Rule:
        """Unpickle a rule, and keep the pickle, because a rule in use may have objects that cannot be pickled.

        Raises: RuleError if the rule cannot be unpickled.
        """
        rule = unpickled(data)
        self._known[id(rule)] = rule, data
        return rule

    async def save_rules(self, rules: Iterable[Rule]) -> None:
        """Store the rules in Ray, for a restart of the interceptor. The next write to the server puts them in force."""
        kept = tuple(rules)
        # A rule without a known pickle is a black list that was made in this process.
        self._known = {id(rule): self._known.get(id(rule)) or (rule, pickled(rule)) for rule in kept}
        pickles = [data for _, data in self._known.values()]
        code = ray.cloudpickle.dumps((pickles, self.scheduled))
        name = self._code + secrets.token_hex(8)
        await asyncio.to_thread(kv_put, name, code, namespace=NAMESPACE)
        self._names = [name, *(rule.name for rule in kept)]

    async def load_rules(self) -> tuple[Rule, ...] | None:
        """Return the rules that were in force when the interceptor last died, or None if none are stored.

        Raises: RuleError if Ray has lost the rules.
        """
        name = await self._server.rules_name()
        if name is None or not name.startswith(self._code.encode()):
            return None
        code = await asyncio.to_thread(kv_get, name, namespace=NAMESPACE)
        if code is None:
            name, code = await self._newest()
        # That Ray lacks the rules is an error, because the rules that were given at the start might allow messages that
        # are forbidden now.
        if code is None:
            raise RuleError(
                f"Ray's cluster state has lost the rules of experiment {self._exp_id!r}: start the experiment again",
                rule="all",
            )
        self._kept = name.decode()
        kept, self.scheduled = ray.cloudpickle.loads(code)
        self._in_force = [self._kept, *(rule.name for rule in kept)]
        return tuple(self.admit(rule) for rule in kept)

    async def _newest(self) -> tuple[bytes, bytes | None]:
        """Return the name and the pickle of the rules that Ray has.

        This is for the case that Ray has no entry with the name that the server gives. This happens if the server was
        restored from older data. If Ray has several entries of rules, or none, the pickle is None.
        """
        names = await self._saved()
        code = await asyncio.to_thread(kv_get, names[0], namespace=NAMESPACE) if len(names) == 1 else None
        if code is not None:
            logger.error(
                "the server has lost a change of the rules of %s that Ray still has: was the server restored from "
                "older data? Changes of the rules' lists and counts may be lost as well",
                self._exp_id,
            )
        return names[0] if names else b"", code

    async def began(self) -> bool:
        """Return whether this start of the experiment has stored rules, which means that it has begun."""
        return bool(await self._saved())

    async def _saved(self) -> list[bytes]:
        return await asyncio.to_thread(kv_names, self._code, namespace=NAMESPACE)

    async def forget_rules(self) -> None:
        """Delete the rules of all starts of this experiment from Ray."""
        for name in await asyncio.to_thread(kv_names, self._runs, namespace=NAMESPACE):
            await asyncio.to_thread(kv_delete, name, namespace=NAMESPACE)


def description(rule: Rule) -> dict[str, Any]:
    """Return a rule's description of itself, or the error if `describe` fails."""
    try:
        return rule.describe()
    except Exception as error:
        logger.exception("rule %r cannot be described", rule.name)
        return {"name": rule.name, "kind": type(rule).__name__, "error": f"{type(error).__name__}: {error}"}


def _fenced(epoch: int) -> Fenced:
    return Fenced(
        "a newer interceptor judges the messages of this experiment, so this older one lets no message pass: send "
        "again",
        name=INTERCEPTOR,
        epoch=epoch,
    )


def pickled(rule: Rule) -> PickledRule:
    """Pickle a rule; raise RuleError if it cannot be pickled."""
    context, rule.context = rule.context, None  # the pickle must not contain the interceptor
    try:
        # With protocol 5, arrays that Ray has made read-only would stay read-only.
        return PickledRule(rule.name, ray.cloudpickle.dumps(rule, protocol=4))
    except Exception as error:  # a rule's objects may raise any error
        raise RuleError(
            f"rule {rule.name!r} cannot be sent to the interceptor: {unpicklable(rule) or error}. Make connections "
            "and locks when they are first used, not in __init__",
            rule=rule.name,
        ) from error
    finally:
        rule.context = context


def unpickled(rule: PickledRule) -> Rule:
    """Unpickle a rule in the interceptor's process; raise RuleError if that fails."""
    try:
        found: Rule = ray.cloudpickle.loads(rule.data)
    except Exception as error:  # a rule's objects may raise any error
        raise RuleError(
            f"rule {rule.name!r} cannot be unpickled in the interceptor's process ({type(error).__name__}: {error}): "
            "its module must be importable on every node (see runtime_env), or be the script that runs",
            rule=rule.name,
        ) from error
    return found
