"""The class of `messaging.steps`, by which a driver follows and controls the steps of an experiment."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Self

from ray_messaging.addressing.channels import check_name
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.common.notebook import html_table
from ray_messaging.common.progress_line import ProgressLine
from ray_messaging.common.texts import steps_done
from ray_messaging.default_limits_and_leases import STEP_NEWS_TIMEOUT_S
from ray_messaging.errors import ConfigError, ConnectionFailed, MessagingError, ServerRefused
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.whole_numbers import step_count
from ray_messaging.receiving.call_checks import check_timeout
from ray_messaging.steps.step_account import StepCounts, digest_of
from ray_messaging.steps.stragglers import Straggler
from ray_messaging.transports.step_values import SUPERVISOR, Collected, Progress

_NAMED = 3  # the progress names at most this many late groups
_RECENT_S = 10.0  # the rate is computed from the steps of the last 10 s


class RunProgress:
    """Display of a run's step, rate and slowest group: a bar on a terminal, otherwise a line on stderr every 10 s.

    Args: `more` returns further text for the display ("": none).
    """

    def __init__(self, steps: "ExperimentSteps", until: int, *, more: Callable[[], str] = lambda: "") -> None:
        self._more = more
        self._steps = steps
        self._until = until
        self._line = ProgressLine(until, shown=True)
        self._step = 0  # the step that was shown last
        self._ended = False  # whether the last line says that the steps are done
        self._seen: deque[tuple[int, float]] = deque()  # the latest steps, and the time at which each was first seen

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._line.__exit__(kind, *error)
        # A last line is printed if the line before it says that a step is still open.
        if kind is None and self._line.has_lines and not self._ended:
            # The steps have succeeded, so an error of the interceptor, which may restart or end just now, is ignored.
            with suppress(MessagingError):
                self._end(self._steps.progress().sealed + 1)

    def show(self) -> None:
        """Show how far the run is, if the display is due. Call this often, because it also measures the rate."""
        try:
            progress = self._steps.progress()
        # This error is only shown, because the groups may still reach the server. If they cannot, they raise errors.
        except ConnectionFailed as error:
            if self._line.is_due():
                self._line.show(self._step, f"step {self._step} of {self._until}, as far as is known: {error}")
            return
        step = self._step = progress.sealed + 1
        rate = self._rate(step, progress)
        paused = progress.target is not None and step > progress.target
        if paused:
            self._seen.clear()
        if not self._line.is_due():
            return
        if step >= self._until:
            self._end(step)
            return
        now = ", paused until messaging.steps.resume()" if paused else rate + _slowest(progress)
        late = map(str, self._steps.stragglers()[:_NAMED])
        self._line.show(step, "; ".join([f"step {step} of {self._until}{now}", *filter(None, [self._more()]), *late]))

    def _end(self, step: int) -> None:
        self._ended = True
        done = steps_done(step) if step >= self._until else f"{step} of {self._until} steps done"
        self._line.show(step, "; ".join(filter(None, [done, self._more()])))

    def _rate(self, step: int, progress: Progress) -> str:
        """Return the present number of steps per second as text; "" in the first step.

        The rate is measured over the last `_RECENT_S` seconds, or over the last step if this step took longer.
        """
        seen, now = self._seen, time.monotonic()
        if step > seen[-1][0] if seen else step <= progress.latest:  # a new step, or the first step, has begun
            seen.append((step, now))
        while len(seen) > 2 and seen[1][1] <= now - _RECENT_S:
            seen.popleft()
        if len(seen) < 2:
            return ""
        (first, began), (last, ended) = seen[0], seen[-1]
        # The open step lowers the rate if it takes longer than earlier steps.
        return f", {min((last - first) / (ended - began), (last - first + 1) / (now - began)):.3g} steps/s"


def _slowest(progress: Progress) -> str:
    """Return a text that names a group for which others wait, if possible one that is cut off; "" if there is none.

    A group is cut off if its driver has not called the server for some time.
    """
    waiting = progress.waiting_for()
    if not waiting:
        return ""
    cut_off = {name: group for name, group in progress.groups.items() if name in waiting and group.cut_off}
    slowest = min(waiting, key=lambda name: (name not in cut_off, waiting[name], name))
    more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    silent_s = cut_off[slowest].silent_ms / 1000 if cut_off else 0.0
    heard = f" (the task that drives it has not called the server for {silent_s:.0f} s)" if cut_off else ""
    return f", waiting for {slowest}{heard}{more}"


class ExperimentSteps:
    """Handle of the steps of all groups: it shows their progress, pauses and resumes them, and returns their digests.

    All calls but `moved` and `stragglers` raise ConfigError if the experiment has no steps.
    """

    def __init__(self, connection: ExperimentConnection) -> None:
        self._connection = connection
        self._interceptor = connection.interceptor

    def __repr__(self) -> str:
        return f"ExperimentSteps({self._connection.exp_id!r})"

    def _repr_html_(self) -> str:
        progress = self.progress()
        groups = progress.groups.values()
        columns: dict[str, list[Any]] = {
            "group": [*progress.groups],
            "closed": [group.closed for group in groups],
            "open": [group.open for group in groups],
            "driver": [None if group.driver is None else group.driver.task for group in groups],
            "idle (s)": [group.idle_ms / 1000 for group in groups],
        }
        paused = f", pauses after step {progress.target}" if progress.target is not None else ""
        now = steps_done(progress.sealed + 1) if progress.resting else f"step {progress.sealed + 1}"
        return html_table(f"{self!r}: {now}{paused}", columns, len(groups))

    def progress(self) -> Progress:
        """Return how far each group is, and whether the steps are paused."""
        found: Progress = self._connection.ask(self._interceptor.step_progress.remote())
        return found

    @property
    def now(self) -> int:
        """Return the first step that some group has not committed."""
        return self.progress().sealed + 1

    @property
    def groups(self) -> list[str]:
        """Return the groups that take part in the steps: no step ends before all of them have committed it."""
        return [name for name, group in self.progress().groups.items() if group.until is None]

    def hosted(self) -> dict[str, AgentSet]:
        """Return the agents of each group that takes part in the steps."""
        found: dict[str, AgentSet] = self._connection.ask(self._interceptor.hosted.remote(self.groups))
        return found

    def moved(self) -> dict[str, AgentSet]:
        """Return the current agents of each group that agents have left or joined."""
        found: dict[str, AgentSet] = self._connection.ask(self._interceptor.moved.remote())
        return found

    @property
    def wait_for(self) -> str:
        """Return "all" if each group waits for all groups, "senders" if it waits only for those that may send to it.

        Even with `Steps(wait_for="senders")` the value is "all" while a rule acts at the end of each step, such as a
        rule that counts by rounds, and while a change of the rules waits for its step.
        """
        return str(self.progress().wait_for)

    def declare(self, hears: Mapping[str, Iterable[str]], *, at_step: int | None = None) -> None:
        """Declare which groups may send to which other groups, for `Steps(wait_for="senders")`.

        A group "hears" the groups that may send to it, and waits only for these. A group without a declaration hears
        all groups. If a group sends to a group that does not hear it, its step raises UndeclaredSend, and is not
        committed.

        Args:
            hears: A dict that maps a group to the other groups that may send to it. The groups need not exist yet.
            at_step: The declaration holds for messages that are read in this step or later. The step must be at least
                two steps after the latest open step. None: for all messages, and no step may have begun.

        Raises: ConfigError if a group may already have sent messages under another declaration.
        """
        if at_step is not None and (isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 0):
            raise ConfigError(f"at_step={at_step!r} must be the number of a step")
        self._connection.ask(self._interceptor.declare_senders.remote(_checked(hears), at_step))

    def waiting_for(self) -> dict[str, int]:
        """Return the groups for which others wait, each with the step that it must commit; {} if no step is open."""
        progress = self.progress()
        return {} if progress.resting else progress.waiting_for()

    def stragglers(self) -> list[Straggler]:
        """Return the groups that had kept a step waiting for `Steps.stall_s` seconds at the last check.

        A group whose driver does not reach the server is returned earlier.
        """
        found: list[Straggler] = self._connection.ask(self._interceptor.step_stragglers.remote())
        return found

    def wait(self, until: int, *, timeout: float | None = None, progress: bool = False) -> None:
        """Wait until all groups have committed the steps before `until`; raise TimeoutError after `timeout` seconds.

        Args: With `progress`, show the step, the rate, and the groups for which others wait, as `messaging.run` does.
        """
        check_timeout(timeout)
        until = step_count("wait", until, 0)
        deadline = None if timeout is None else time.monotonic() + timeout
        with RunProgress(self, until) if progress else nullcontext() as bar:
            while (now := self._patient_progress(deadline)).sealed + 1 < until:
                left = STEP_NEWS_TIMEOUT_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    waits = ", ".join(f"{name} (step {step})" for name, step in sorted(now.waiting_for().items()))
                    raise TimeoutError(
                        f"the steps before {until} are not committed after {timeout:g} s. They wait for "
                        f"{waits or 'no group'}: pass a longer timeout, or look for errors there"
                    )
                if bar is not None:
                    bar.show()
                with suppress(ConnectionFailed):  # `_patient_progress` limits how long this is tried
                    self._connection.ask(self._interceptor.wait_steps.remote(now.news, min(left, STEP_NEWS_TIMEOUT_S)))

    def _patient_progress(self, deadline: float | None) -> Progress:
        """Return the progress. If the interceptor cannot reach the server, try again, at most for `cut_timeout_s`.

        Do not try after `deadline`, a value of `time.monotonic` (None: no deadline).
        """
        cut_timeout_s = self._connection.experiment.settings.cut_timeout_s
        until = time.monotonic() + cut_timeout_s
        while True:
            try:
                return self.progress()
            except ConnectionFailed as error:
                late = time.monotonic() > (until if deadline is None else min(until, deadline))
                if isinstance(error, ServerRefused) or late:
                    raise

    def pause(self) -> int:
        """Let no group begin another step until `resume` or `advance` is called.

        Return the last step that may have begun.
        """
        found: int = self._connection.ask(self._interceptor.pause_steps.remote())
        return found

    def resume(self, last: int | None = None) -> None:
        """Let the steps go on after a pause, up to and including step `last` (None: without a limit).

        Raises: ConfigError unless `last` is a step number.
        """
        if last is not None:
            last = step_count("resume", last, 0)
        self._connection.ask(self._interceptor.resume_steps.remote(last))

    def advance(self, n: int = 1) -> int:
        """Let n more steps run, and then pause again; return the last of these steps.

        If `advance` is called again before these steps have run, n is counted from the last of these steps.
        """
        n = step_count("advance", n, 1)
        target = self.progress().target
        last = (self.pause() if target is None else target) + n
        self.resume(last)
        return last

    def fates_by_rules(self, step: int) -> dict[str, int]:
        """Return by how much rules for whole steps have changed the count of each fate, over all steps up to `step`.

        `{"blocked": 3, "delivered": -3}` says that these rules have blocked three messages.
        """
        left = self._sealed(step).get(SUPERVISOR)
        return {} if left is None else dict(left.total)

    def digest(self, step: int) -> bytes:
        """Return the digest of a step's messages, 32 bytes. All groups must have committed the step.

        Raises: ConfigError without `Steps(digest=True)`; UnknownName if a group has not committed the step yet, or if
        all committed it too long ago.
        """
        return digest_of(self._sealed(step))

    def collected(self, through: int) -> list[Collected]:
        """Return the data that groups recorded by `collect` up to step `through`, and that the server still has."""
        found: list[Collected] = self._connection.ask(self._interceptor.step_collected.remote(through))
        return found

    def history_digest(self, step: int) -> bytes:
        """Return the digest of all steps up to and including `step`, 32 bytes. Raises the same errors as `digest`."""
        found: bytes = self._connection.ask(self._interceptor.history_digest.remote(step))
        return found

    def fates(self, step: int) -> "Counter[str]":
        """Return how many messages of a step had each fate, such as "delivered". Raises the same errors as `digest`.

        `group.fates(step)` returns the same for one group. The event log has the fate of each message.
        """
        found = Counter[str]()
        for counts in self._sealed(step).values():
            found.update(counts.fates)  # `+` would drop negative counts, which the changes by rules may have
        return +found

    def _sealed(self, step: int) -> dict[str, StepCounts]:
        found: dict[str, StepCounts] = self._connection.ask(self._interceptor.sealed_step.remote(step))
        return found


def _checked(hears: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Check and return `hears`: for each group, the set of groups that may send to it.

    Raises: ConfigError if `hears` does not map each group to a list of groups; InvalidAddress for an invalid name.
    """
    if not isinstance(hears, Mapping):
        raise ConfigError(
            f"hears={hears!r} must map each group to the groups that it hears, such as {{'north': ['south']}}"
        )
    for group, senders in hears.items():
        if isinstance(senders, str) or not isinstance(senders, Iterable):
            raise ConfigError(
                f"hears[{group!r}] is {senders!r}: it must be a list of groups, such as [{str(senders)!r}]"
            )
    return {
        check_name("group", group): {check_name("group", sender) for sender in senders}
        for group, senders in hears.items()
    }
