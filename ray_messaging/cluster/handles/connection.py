"""Connection of a handle to a running experiment."""

from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from ray_messaging.addressing.channels import check_name
from ray_messaging.cluster.handles.actor_calls import find_actor, result, translated
from ray_messaging.cluster.spec import Experiment, no_log
from ray_messaging.errors import Closed, ConfigError, UnknownName


class ExperimentConnection:
    """An experiment and the handle of its interceptor.

    No pickle holds the server's password: a connection that was pickled asks the interceptor for it when it is needed.
    """

    def __init__(self, experiment: Experiment, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self.experiment = experiment
        self.interceptor = interceptor

    @property
    def exp_id(self) -> str:
        """Return the experiment's name."""
        return self.experiment.exp_id

    @property
    def _actor_name(self) -> str:
        return f"the interceptor of experiment {self.exp_id!r}"

    def with_password(self) -> Experiment:
        """Return the experiment with its server's password."""
        if self.experiment.withheld:
            self.experiment = self.ask(self.interceptor.ready.remote())
        return self.experiment

    async def with_password_async(self) -> Experiment:
        """Return the same as `with_password` without blocking the event loop."""
        if self.experiment.withheld:
            try:
                self.experiment = await self.interceptor.ready.remote()
            except (RayTaskError, RayActorError) as error:
                raise translated(error, actor_name=self._actor_name) from error
        return self.experiment

    def ask(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        """Return the result of a call of the interceptor; raises as `actor_calls.result`."""
        return result(ref, actor_name=self._actor_name)

    def log_actor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the actor that keeps the event log; raise ConfigError where there is none, Closed after the end."""
        experiment = self.experiment
        if experiment.log_dir is None:
            raise ConfigError(no_log(self.exp_id))
        actor = find_actor(experiment.log_name)
        if actor is None:
            raise Closed(
                f"experiment {self.exp_id!r} was shut down: EventLog.open({experiment.log_dir!r}) reads its log"
            )
        return actor


def connect(exp_id: str) -> ExperimentConnection:
    """Find a running experiment in this Ray cluster; raise UnknownName."""
    interceptor = find_interceptor(exp_id)
    return ExperimentConnection(result(interceptor.ready.remote(), actor_name=f"experiment {exp_id!r}"), interceptor)


def find_interceptor(exp_id: str) -> Any:  # noqa: ANN401 - a Ray actor handle
    """Return the interceptor of a running experiment; raise UnknownName."""
    check_name("exp_id", exp_id)
    interceptor = find_actor(f"{exp_id}/interceptor")
    if interceptor is None:
        raise UnknownName(
            f"no experiment {exp_id!r} runs in this Ray cluster: Messaging.start({exp_id!r}) first",
            kind="experiment",
            value=exp_id,
        )
    return interceptor
