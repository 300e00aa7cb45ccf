"""Port to the bodies of large frames in boxes, where these are elsewhere than the boxes."""

from collections.abc import Sequence
from typing import Protocol

from ray_messaging.transports.steps.values import BoxFrame, StepTag
from ray_messaging.transports.transport import FrameWrite, SendRequest


class FrameBodies(Protocol):
    """Bodies of large frames. A box has a stand-in for each, which names it and its size."""

    async def put(self, request: SendRequest, tag: StepTag) -> Sequence[FrameWrite]:
        """Keep the large frames of a call; return its writes with stand-ins in place of these.

        The same frame under the same tag and number is kept once. Raises the errors of a send that has written nothing.
        """

    async def fetch(self, box: str, frames: list[BoxFrame]) -> list[BoxFrame]:
        """Return frames of a box with their bodies in place of the stand-ins; of a dropped box only what is there.

        Raises: BodyLost.
        """
