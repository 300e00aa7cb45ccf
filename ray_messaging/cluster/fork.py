"""Fork of a run: a new experiment that begins with a checkpoint of another experiment, its parent."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.addressing.channels import AgentId, check_id, check_name, survey_mailbox
from ray_messaging.audiences.cache import EVERYBODY
from ray_messaging.cluster.lifecycle import StartedExperiment, start_experiment
from ray_messaging.cluster.ray_calls import context, get, put
from ray_messaging.cluster.ray_internals import on_ray_client
from ray_messaging.cluster.run.agent import StateChange
from ray_messaging.cluster.spec import absolute
from ray_messaging.config import Steps
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, NotRepeatable
from ray_messaging.interception.rules import Rule
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.sending.bulk_input import ColumnChunk, batches_of_columns, unspread_batches
from ray_messaging.surveys.surveys import open_mailbox, questions

if TYPE_CHECKING:
    from ray_messaging.audiences.audience_kinds import Audiences
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.eventlog.folder import Folder
    from ray_messaging.eventlog.folder_records import RunRecord
    from ray_messaging.eventlog.reading.event_rows import LogRow
    from ray_messaging.messager_engine import Engine


class Fork:
    """Checks and repeated messages of a fork, a run that goes on from a checkpoint of another run, its parent.

    The process that started the fork calls this object between the fork's steps. The object checks that in the steps
    before `at_step` the fork's groups send the same messages as the parent's groups. It also sends again the messages
    that came to the parent's agents from outside of the steps, such as the user's messages and questions. The answers
    to these questions are ignored.

    Args: `step` is the step after which the fork's checkpoint was made. `outside` are the messages from outside.
    `states` are values to set in agents' states before step `at_step`. `checkpoints` are the steps after which the
    parent has checkpoints. If `resumed` is True, an earlier process of the fork may already have sent some messages
    from outside.
    """

    def __init__(
        self,
        parent: "EventLog",
        step: int,
        at_step: int,
        outside: "Sequence[LogRow]",
        states: Mapping[AgentId, Mapping[str, Any]] | None,
        *,
        checkpoints: Sequence[int] = (),
        resumed: bool = False,
    ) -> None:
        self.change = StateChange(at_step, states or {})
        self._parent = parent
        self._checkpoint = step
        self._at_step = at_step
        self._checkpoints = checkpoints
        self._resumed = resumed
        self._answers = survey_mailbox("asked-again")
        self._outside: dict[int, list[LogRow]] = {}
        for row in outside:
            assert row.step_read is not None
            self._outside.setdefault(row.step_read, []).append(row)

    def stops(self, first: int, until: int) -> Iterator[tuple[int, "Callable[[Messaging], None]"]]:
        """Yield each step before which the fork must check or send messages, and the function to call before the step.

        The steps are in ascending order, from `first` on. The run ends before step `until`. Only the check
        can be yielded with step `until` itself, because it checks the steps before.
        """
        for step in sorted({self._at_step, *self._outside}):
            if first <= step <= until and step == self._at_step > self._checkpoint + 1:
                yield step, self._check
            if first <= step < until and step in self._outside:
                yield step, partial(self._send, step)

    def _check(self, messaging: "Messaging") -> None:
        """Raise NotRepeatable if the fork's groups sent other messages before step `at_step` than the parent's did."""
        log, again = messaging.log, range(self._checkpoint + 1, self._at_step)
        if all(log.digest(step) == self._parent.digest(step) for step in again):
            return
        found = log.diff(self._parent)
        if found is None or found.step not in again:  # only messages from outside of the steps differ
            return
        mine, theirs = (None if row is None else row.text for row in (found.mine, found.theirs))
        raise NotRepeatable(
            f"step {found.step} differs from the parent's: message {found.message_id} of agent {found.agent!r} is "
            f"{mine or 'missing'} in the fork, and {theirs or 'missing'} in the parent. The steps from {again[0]} to "
            f"{again[-1]} must first run again exactly as in the parent, but they did not: the model, the rules or "
            f"the data differ from the parent's, or the model is not repeatable. Fork at step {again[0]}, where no "
            "step has "
            f"to run again; or call run with the parent's model, rules and data for the steps before {self._at_step}, "
            "then call run a second time with your change",
            step=found.step,
            agent=found.agent,
            what="message",
            mine=mine,
            theirs=theirs,
        )

    def _send(self, step: int, messaging: "Messaging") -> None:
        rows = self._outside[step]
        if self._resumed:
            rows = _left(rows, step, messaging.log)
        messaging._user.run(self.send_again(messaging._user.messager.engine, rows))
        del self._outside[step]
        # An earlier process of the fork has sent no messages for later steps, because it died before these steps began.
        self._resumed = False

    async def send_again(self, engine: "Engine", rows: "Sequence[LogRow]") -> None:
        """Send again the messages that came from outside of the steps, with the same bytes as in the parent.

        Raises: NotRepeatable for a broadcast to a version of an audience that the fork does not have.
        """
        for (audience, subtopic, asks, _), same in groupby(rows, key=_way):
            some = [*same]
            lines = [(row.text if row.text_before is None else row.text_before).encode() for row in some]
            columns = ColumnChunk(
                IdColumn.of([row.from_id for row in some]),
                IdColumn.of([row.to_id for row in some]),
                PayloadColumn.of(lines, raw=any(b"\n" in line for line in lines)),
            )
            chunks, sender = columns.within_limits(), engine.bulk_sender
            if audience is not None:
                await engine.frame_sender.refresh()
                self._check_audience(engine.directory.audiences, some[0])
                await sender.broadcast(unspread_batches(chunks, audience, subtopic, engine.step))
            elif asks:
                await open_mailbox(engine, self._answers, len(rows))
                await sender.send_questions([questions(engine, self._answers, chunk, subtopic) for chunk in chunks])
            else:
                await sender.send(batches_of_columns(chunks, subtopic, engine.step))

    def _check_audience(self, audiences: "Audiences", row: "LogRow") -> None:
        """Raise NotRepeatable if the fork lacks the version of an audience to which a broadcast must be sent again."""
        assert row.audience is not None
        name, step, version = row.audience, row.step_read or 0, audiences.last_version(row.audience)
        if name == EVERYBODY.name or version == row.audience_version or (step >= self._at_step and version):
            return
        later = [each + 1 for each in self._checkpoints if each >= step]
        here = f"has version {version}" if version else "does not exist"
        raise NotRepeatable(
            f"before step {step} the fork must send a broadcast from outside of the steps again, {row.text}, and "
            f"cannot: in the parent, audience {name!r} then had version {row.audience_version}, which a call from "
            f"outside had made after the fork's checkpoint. In the fork, the audience {here}. Make version "
            f"{row.audience_version} by messaging.create_audience, as was done in the parent, and call run again"
            + (f", or fork at step {min(later)} or later" if later else ""),
            step=step,
            agent=row.from_id,
            what="message",
            mine=None,
            theirs=row.text,
        )


def _left(rows: "Sequence[LogRow]", step: int, log: "EventLog") -> "list[LogRow]":
    """Return those of `rows` that the fork has not sent again yet.

    `rows` are messages that came from outside of the steps, and are read in the step `step`. A message was sent again
    if the fork's log has it.
    """
    from ray_messaging.eventlog.forking import outside_of  # noqa: PLC0415 - brings pyarrow

    sent, left = Counter(map(_said, outside_of(log, step))), []
    for row in rows:
        sent[_said(row)] -= 1
        left += [row] if sent[_said(row)] < 0 else []
    return left


def _said(row: "LogRow") -> tuple[object, ...]:
    return row.from_id, row.to_id, row.audience, row.subtopic, row.expects_answer, row.text_before or row.text


def _way(row: "LogRow") -> tuple[str | None, str, bool, int | None]:
    """Return a key for a message that came from outside of the steps. Messages with equal keys can be sent in one call.

    A key has the audience, the subtopic, whether the message is a question, and the audience's version. If the message
    was sent to the user, or to a channel that belongs to no agent, the key has ":" and the channel in place of the
    subtopic.
    """
    plain = row.audience is None and row.to_id is None
    subtopic = f":{row.channel}" if plain else row.subtopic or ""
    return row.audience, subtopic, bool(row.expects_answer), row.audience_version


def start_fork(
    parent_dir: str | Path,
    exp_id: str,
    *,
    at_step: int | None,
    log_dir: str | Path,
    rules: Sequence[Rule] | None,
    states: Mapping[AgentId, Mapping[str, Any]] | None,
    on_existing: str,
    **options: Any,  # noqa: ANN401 - as for start_experiment
) -> tuple[StartedExperiment, Fork]:
    """Start a fork; arguments and errors are as for `Messaging.fork`."""
    # These modules import pyarrow, which takes a second.
    from ray_messaging.eventlog.collected import check_collected  # noqa: PLC0415
    from ray_messaging.eventlog.event_log import EventLog  # noqa: PLC0415
    from ray_messaging.eventlog.folder import Folder  # noqa: PLC0415
    from ray_messaging.eventlog.folder_records import read_run  # noqa: PLC0415
    from ray_messaging.eventlog.forking import (  # noqa: PLC0415
        check_rows,
        checkpoint_before,
        copy_run,
        outside_of,
        record_of,
    )

    if on_existing not in {"error", "resume"}:
        raise ConfigError(f"on_existing={on_existing!r} is unknown: write 'error', or 'resume' to go on with a fork")
    if at_step is not None and (isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 1):
        raise ConfigError(f"at_step={at_step!r} must be the number of a step, from 1 on")
    if not isinstance(states or {}, Mapping) or not all(isinstance(each, Mapping) for each in (states or {}).values()):
        raise ConfigError(
            f"states={states!r} must give, for each agent, the values to set in its state, such as {{3: {{'mood': "
            "0.5}}"
        )
    states = {check_id(agent): dict(values) for agent, values in (states or {}).items()}
    parent, target = Folder(str(absolute(parent_dir))), str(absolute(log_dir))
    record = record_of(parent)
    if record.steps is None:
        raise ConfigError(f"the run in {parent.where} had no steps: only a run with steps=Steps() can be forked")
    _check_rules(record, parent.where, rules)
    check_name("exp_id", exp_id)
    there = read_run(Folder(target)) if on_existing == "resume" else None
    if there is None:
        step = checkpoint_before(parent, at_step)
        check_collected(parent)  # a fork that is resumed has its own copies of the collected data
    else:
        step = _checkpoint_of(there, target, record.experiment, at_step)
    check_rows(parent)
    if there is None:
        copy_run(parent, Folder(target), exp_id, step)
    log = EventLog.open(parent.where)
    outside, checkpoints = outside_of(log, slice(step + 1, None)), parent.checkpoints()
    resumed = there is not None
    fork = Fork(log, step, at_step or step + 1, outside, states, checkpoints=checkpoints, resumed=resumed)
    begin: dict[str, Any] = {"on_existing": "resume"} if resumed else {"on_existing": "error", "fork": step}
    steps = Steps(**record.steps)
    try:
        if not resumed and on_ray_client() and "://" not in target:
            _bring(target)
        started = start_experiment(exp_id, steps=steps, log_dir=target, rules=rules or (), **begin, **options)
    except BaseException:
        if not resumed:
            _remove(Folder(target))
        raise
    return started, fork


def _remove(folder: "Folder") -> None:
    """Remove the folder of a fork that could not start.

    On an object store only the fork's files are removed, because other files may be beside them.
    """
    if folder.local:
        shutil.rmtree(folder.path, ignore_errors=True)
    else:
        with suppress(LogError):  # the error that prevented the start is raised instead
            folder.erase(records=True)


def _bring(folder: str) -> None:
    """Copy a fork's folder to the node of the cluster that will write its log, unless that node already has the folder.

    Raises: AlreadyExists if another log, or other files, are at this path on that node.
    """
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    files = [(str(path.relative_to(folder)), put(path.read_bytes())) for path in paths]
    there = NodeAffinitySchedulingStrategy(context().get_node_id(), soft=False)
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
    if not get(ray.remote(**options)(_place).remote(folder, files)):
        text = f"{folder} on the node of the cluster is not empty: choose an empty log_dir for the fork"
        raise AlreadyExists(text, kind="log", value=folder, owner=None)


def _place(folder: str, files: "Sequence[tuple[str, Any]]") -> bool:
    """Write files into a new folder, which appears as a whole.

    If the folder exists already, write nothing, and return whether it has all these files with the same content.
    """
    path = Path(folder)
    if path.exists():
        return all((path / name).is_file() and (path / name).read_bytes() == get(data) for name, data in files)
    made = path.with_name(f".{path.name}-{uuid4().hex}")
    for name, data in files:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(get(data))
    made.rename(path)
    return True


def _checkpoint_of(fork: "RunRecord", where: str, parent: str, at_step: int | None) -> int:
    """Return the step of the checkpoint with which a fork began; raise ConfigError if the fork has another parent."""
    if fork.parent is None or fork.parent.experiment != parent:
        of = "no fork" if fork.parent is None else f"a fork of {fork.parent.experiment!r}"
        raise ConfigError(f"{where} has {of}, so this fork of {parent!r} cannot use it: pass another log_dir")
    if at_step is not None and at_step <= fork.parent.step:
        raise ConfigError(
            f"{where} has a fork that began after step {fork.parent.step}: fork at step {fork.parent.step + 1} or "
            "later to go on with this fork, or pass another log_dir to begin a new one"
        )
    return fork.parent.step


def _check_rules(record: "RunRecord", where: str, rules: Sequence[Rule] | None) -> None:
    """Raise ConfigError if the parent had rules, and `rules` is None: the fork could not repeat the parent's steps."""
    # The checkpoint may be from an earlier start of the parent, so the rules of all starts are considered.
    former = [f"{rule.get('kind')}(name={rule.get('name')!r})" for start in record.starts for rule in start.rules]
    if rules is None and former:
        named = ", ".join(dict.fromkeys(former))
        raise ConfigError(
            f"the run in {where} had rules ({named}), but the folder does not have their code: pass rules=[...]. With "
            "the same rules the fork can equal its parent; rules=[] means no rules"
        )
