"""What a handle of a running experiment knows of it: all but the server's password, where it came by pickle."""

from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from ray_messaging.cluster.handles.actor_calls import result, translated
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import ServerConfig


class Connected:
    """Know an experiment; what was pickled asks the interceptor for the password when that is wanted."""

    _experiment: Experiment
    _interceptor: Any

    @property
    def exp_id(self) -> str:
        """Return the experiment's name."""
        return self._experiment.exp_id

    @property
    def redis(self) -> ServerConfig:
        """Return where the server is: for a foreign Redis client, or a Messager of your own."""
        return self._whole.redis

    @property
    def _whole(self) -> Experiment:
        """Return the experiment with its password, which no pickle holds."""
        if self._experiment.withheld:
            self._experiment = self._ask(self._interceptor.ready.remote())
        return self._experiment

    async def _complete(self) -> Experiment:
        """Return the same as `_whole`, on an event loop, which must not be blocked."""
        if self._experiment.withheld:
            try:
                self._experiment = await self._interceptor.ready.remote()
            except (RayTaskError, RayActorError) as error:
                raise translated(error, what=f"the interceptor of experiment {self.exp_id!r}") from error
        return self._experiment

    def _ask(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        return result(ref, what=f"the interceptor of experiment {self.exp_id!r}")
