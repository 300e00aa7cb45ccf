"""The handle of an inspector that runs in a separate process, for drivers and notebooks."""

import html
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from tempfile import TemporaryFile

import msgspec

from ray_messaging.cluster.ray_calls import context
from ray_messaging.cluster.ray_internals import on_ray_client
from ray_messaging.errors import ConfigError

_END_S = 10.0


class Inspector(AbstractContextManager["Inspector"]):
    """Handle of an inspector, which serves web pages about a run. Open `url` in a browser; call `close` at the end.

    The inspector ends with the process that opened it.
    """

    def __init__(self, exp_id: str, options: list[str]) -> None:
        """Start the inspector, and wait until its pages can be opened; raise ConfigError if it does not start."""
        if on_ray_client():
            raise ConfigError(
                f"with Ray Client this machine may be unable to reach the experiment: run `ray-messaging ui {exp_id}` "
                "on a node of the cluster"
            )
        self.exp_id = exp_id
        command = [sys.executable, "-m", "ray_messaging.cli", "ui", exp_id, "--json", "--of-process", *options]
        self._said = TemporaryFile()  # noqa: SIM115 - `close` closes it; a pipe that nobody reads would fill up
        address = {"RAY_ADDRESS": context().gcs_address}
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=os.environ | address,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(self._why())
        self.url: str = msgspec.json.decode(line)["url"]

    @property
    def pid(self) -> int:
        """Return the process id of the inspector."""
        return self._process.pid

    def wait(self) -> None:
        """Wait until the inspector's process has ended."""
        self._process.wait()

    def _why(self) -> str:
        """Return the reason why the inspector ended."""
        self._process.communicate()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        self._said.close()
        return (said or ["the inspector ended, and gave no reason"])[-1].removeprefix("error: ")

    def close(self) -> None:
        """End the inspector; a second call does nothing."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.communicate()
        self._said.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Inspector({self.exp_id!r}, {self.url})"

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        return f'<p>Inspector of {html.escape(self.exp_id)}: <a href="{url}" target="_blank">{url}</a></p>'
