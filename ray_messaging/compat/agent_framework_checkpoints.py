"""Checkpoints of agent-framework's workflows as JSON files, without pickle."""

import asyncio
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec
from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

from ray_messaging.compat.agent_framework_values import Values

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class WorkflowCheckpoints:
    """A CheckpointStorage of agent-framework: a folder with a JSON file for each checkpoint.

    Args: `values` turns the workflow's values into JSON and back.
    """

    def __init__(self, folder: str | Path, values: Values) -> None:
        self.folder = Path(folder)
        self._values = values

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Write a checkpoint; return its id. Raises: InvalidPayload for a value that has no JSON form."""
        told = self._values.encode(checkpoint.to_dict(), f"checkpoint {checkpoint.checkpoint_id}")
        await asyncio.to_thread(self._write, self._path(checkpoint.checkpoint_id), msgspec.json.encode(told))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint; raise WorkflowCheckpointException if there is none with this id."""
        found = await asyncio.to_thread(self._read, self._path(checkpoint_id))
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return found

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, from the first to the last."""
        found = await asyncio.to_thread(lambda: [*self._all()])
        return sorted((each for each in found if each.workflow_name == workflow_name), key=lambda each: each.timestamp)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of a workflow's checkpoints, from the first to the last."""
        return [each.checkpoint_id for each in await self.list_checkpoints(workflow_name=workflow_name)]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the last checkpoint of a workflow, or None."""
        found = await self.list_checkpoints(workflow_name=workflow_name)
        return found[-1] if found else None

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""
        try:
            await asyncio.to_thread(self._path(checkpoint_id).unlink)
        except FileNotFoundError:
            return False
        return True

    def _path(self, checkpoint_id: str) -> Path:
        if not _NAME.fullmatch(checkpoint_id):
            raise WorkflowCheckpointException(
                f"{checkpoint_id!r} is not the id of a checkpoint: use at most 200 ASCII letters, digits, '.', '_' and "
                "'-', with a letter or digit first"
            )
        return self.folder / f"{checkpoint_id}.json"

    def _write(self, path: Path, told: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{secrets.token_hex(4)}.part")
        with part.open("wb") as file:
            file.write(told)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _read(self, path: Path) -> WorkflowCheckpoint | None:
        try:
            told = msgspec.json.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        return WorkflowCheckpoint.from_dict(self._values.decode(told))

    def _all(self) -> Iterator[WorkflowCheckpoint]:
        for path in self.folder.glob("*.json"):
            if (found := self._read(path)) is not None:
                yield found
