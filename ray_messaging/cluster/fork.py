"""Fork of a run: an experiment of its own that begins with a checkpoint of another one, its parent."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_messaging.addressing.channels import AgentId, check_id, check_name
from ray_messaging.cluster.lifecycle import StartedExperiment, start_experiment
from ray_messaging.cluster.run.agent import StateChange
from ray_messaging.cluster.spec import absolute
from ray_messaging.config import Steps
from ray_messaging.errors import ConfigError, NotRepeatable
from ray_messaging.interception.rules import Rule

if TYPE_CHECKING:
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.eventlog.reading.event_rows import LogRow
    from ray_messaging.eventlog.records import RunRecord
    from ray_messaging.messager import Messager


class Fork:
    """What a fork does between its steps as its parent did, for the process that has started it.

    The steps before `at_step` must have the parent's messages; what reached the parent's agents from outside of the
    steps, such as the user's messages, is sent again.
    """

    def __init__(
        self,
        parent: "EventLog",
        step: int,
        at_step: int,
        outside: "Sequence[LogRow]",
        states: Mapping[AgentId, Mapping[str, Any]] | None,
    ) -> None:
        self.change = StateChange(at_step, states or {})
        self._parent = parent
        self._checkpoint = step
        self._at_step = at_step
        self._outside: dict[int, list[LogRow]] = {}
        for row in outside:
            assert row.step_read is not None
            self._outside.setdefault(row.step_read, []).append(row)

    def stops(self, first: int, until: int) -> Iterator[tuple[int, "Callable[[Messaging], None]"]]:
        """Yield the steps of a run before which something is to be done, ascending, and the function that does it."""
        for step in sorted({self._at_step, *self._outside}):
            if first <= step <= until and step == self._at_step > self._checkpoint + 1:
                yield step, self._check
            if first <= step < until and step in self._outside:
                yield step, partial(self._send, step)

    def _check(self, messaging: "Messaging") -> None:
        """Raise NotRepeatable unless the steps before `at_step` have the parent's messages."""
        log = messaging.log
        for step in range(self._checkpoint + 1, self._at_step):
            if log.digest(step) != self._parent.digest(step) and (found := log.diff(self._parent)) is not None:
                mine, theirs = (None if row is None else row.text for row in (found.mine, found.theirs))
                raise NotRepeatable(
                    f"step {found.step} is not the parent's: message {found.message_id} of agent {found.agent!r} is "
                    f"{mine or 'missing'} here, and {theirs or 'missing'} there. The steps from {self._checkpoint + 1} "
                    f"to {self._at_step - 1} run again as they did in the parent, before anything is changed: the "
                    "model, the rules or the data are others, or the model is not repeatable. Fork at step "
                    f"{self._checkpoint + 1}, where none has to run again, or give what the parent had until step "
                    f"{self._at_step}, and the change in a second call of run",
                    step=found.step,
                    agent=found.agent,
                    what="message",
                    mine=mine,
                    theirs=theirs,
                )

    def _send(self, step: int, messaging: "Messaging") -> None:
        async def send(messager: "Messager") -> None:
            for row in self._outside[step]:
                payload = row.payload if row.text_before is None else row.payload_before
                subtopic = row.subtopic or ""
                if row.audience is not None:
                    await messager.broadcast(row.from_id, row.audience, payload, subtopic=subtopic)
                elif row.to_id is not None:
                    await messager.send(row.from_id, row.to_id, payload, subtopic=subtopic)
                else:
                    await messager.send_message(row.channel, payload, row.from_id)

        messaging._user.run(send(messaging._user.messager))
        del self._outside[step]


def start_fork(
    parent_dir: str | Path,
    exp_id: str,
    *,
    at_step: int | None,
    log_dir: str | Path,
    rules: Sequence[Rule] | None,
    states: Mapping[AgentId, Mapping[str, Any]] | None,
    **options: Any,  # noqa: ANN401 - those of start_experiment
) -> tuple[StartedExperiment, Fork]:
    """Start a fork; arguments and errors are those of `Messaging.fork`."""
    # These bring pyarrow, which takes a second.
    from ray_messaging.eventlog.event_log import EventLog  # noqa: PLC0415
    from ray_messaging.eventlog.folder import Folder  # noqa: PLC0415
    from ray_messaging.eventlog.forking import checkpoint_before, copy_run, outside_after, record_of  # noqa: PLC0415

    if at_step is not None and (isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 1):
        raise ConfigError(f"at_step={at_step!r} must be the number of a step, from 1 on")
    if not isinstance(states or {}, Mapping) or not all(isinstance(each, Mapping) for each in (states or {}).values()):
        raise ConfigError(f"states={states!r} must say what is set in which agent's state: {{3: {{'mood': 0.5}}}}")
    states = {check_id(agent): dict(values) for agent, values in (states or {}).items()}
    parent, target = Folder(str(absolute(parent_dir))), str(absolute(log_dir))
    record = record_of(parent)
    if record.steps is None:
        raise ConfigError(f"{parent.where} is of a run without steps: only a run with steps=Steps() can be forked")
    step = checkpoint_before(parent, at_step)
    _check_rules(record, parent.where, rules)
    check_name("exp_id", exp_id)
    copy_run(parent, Folder(target), exp_id, step)
    log = EventLog.open(parent.where)
    fork = Fork(log, step, at_step or step + 1, outside_after(parent, log, step), states)
    steps = Steps(**record.steps)
    try:
        started = start_experiment(
            exp_id, steps=steps, log_dir=target, rules=rules or (), on_existing="error", fork=step, **options
        )
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)  # a URI is no folder here
        raise
    return started, fork


def _check_rules(record: "RunRecord", where: str, rules: Sequence[Rule] | None) -> None:
    """Raise ConfigError if the parent had rules and none are given: a fork without them would be another run."""
    # The checkpoint may be of an earlier start than the last one.
    former = [f"{rule.get('kind')}(name={rule.get('name')!r})" for start in record.starts for rule in start.rules]
    if rules is None and former:
        named = ", ".join(dict.fromkeys(former))
        raise ConfigError(
            f"the run in {where} had rules ({named}), and rules are code, which no folder keeps: pass rules=[...], the "
            "same for a twin, or rules=[] for none"
        )
