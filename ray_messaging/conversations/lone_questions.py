"""Questions that were asked one by one, with a future for each answer."""

from asyncio import Future

import numpy as np
from numpy.typing import NDArray

from ray_messaging.conversations.open_questions import Rows
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch


class LoneQuestions:
    """The lone questions of one batch; a future that is done waits for no answer."""

    def __init__(self, exp_id: str, futures: "list[Future[Message]]") -> None:
        self._exp_id = exp_id
        self._futures = futures

    @property
    def done(self) -> bool:
        """Tell whether none waits."""
        return all(future.done() for future in self._futures)

    def take(self, places: Rows, batch: Batch, rows: Rows) -> NDArray[np.bool_]:
        """Take answers (see `Asker`)."""
        first = np.zeros(len(places), np.bool_)
        for at, (place, row) in enumerate(zip(places.tolist(), rows.tolist(), strict=True)):
            future = self._futures[place]
            if not future.done():
                future.set_result(Message(self._exp_id, batch, row))
                first[at] = True
        return first
