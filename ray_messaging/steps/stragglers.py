"""Stragglers: groups for which the other groups of a step have waited long."""

from typing import NamedTuple

from ray_messaging.transports.step_values import Progress


class Straggler(NamedTuple):
    """A group for which the other groups of a step wait.

    `idle_s` is the time since the group's last progress. `driver` is the name of the group's driver, or "" if there is
    none. `silent_s` is the time since the driver's last call to the server, or 0 if that time is short.
    """

    group: str
    step: int
    idle_s: float
    is_open: bool
    driver: str
    silent_s: float = 0.0

    def __str__(self) -> str:
        if self.silent_s:
            return (
                f"step {self.step} waits for group {self.group!r}: {self.driver!r}, which drives the group, has not "
                f"called the server for {self.silent_s:.0f} s"
            )
        if self.is_open:
            driven = (
                f", driven by {self.driver!r}" if self.driver else ", and the task or process that drove it has gone"
            )
            return f"group {self.group!r} has been in step {self.step} for {self.idle_s:.0f} s{driven}"
        if not self.driver:
            return (
                f"no task has opened group {self.group!r}: step {self.step} has waited for it for {self.idle_s:.0f} s"
            )
        return f"group {self.group!r} has not begun step {self.step} for {self.idle_s:.0f} s, driven by {self.driver!r}"

    @property
    def remedy(self) -> str:
        """Return what a user can do about the straggler."""
        if self.silent_s:
            return (
                "check its machine, and the network between that machine and the server: messaging.health() says "
                "which nodes can be reached. Ray notices a dead machine after 30 to 66 s, and then starts its groups "
                "elsewhere"
            )
        if self.is_open:
            return "look at what its model does in this step: perhaps it computes, or waits for another service"
        return (
            "drive all groups at the same time, each in a task of its own with num_cpus=0, or remove the group: "
            f"messaging.remove_group({self.group!r})"
        )


def stragglers(progress: Progress, after_s: float) -> list[Straggler]:
    """Return the groups that made no progress for `after_s` seconds in a step that another group has closed.

    A group whose driver does not reach the server is returned earlier.
    """
    paused = progress.target is not None and progress.sealed >= progress.target
    if paused or all(group.closed <= progress.sealed for group in progress.groups.values()):
        return []
    found = []
    for name, step in progress.waiting_for().items():
        group = progress.groups.get(name)
        if group is not None and (group.cut_off or group.idle_ms >= after_s * 1000):
            driver = "" if group.driver is None else group.driver.task
            silent_s = group.silent_ms / 1000 if group.cut_off else 0.0
            found.append(Straggler(name, step, group.idle_ms / 1000, group.open == step, driver, silent_s))
    return sorted(found)
