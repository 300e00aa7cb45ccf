"""The fates of messages, once the server has them."""

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Directory
from ray_messaging.receipt import DELIVERED, PUBLISHED, UNDELIVERABLE, UNKNOWN
from ray_messaging.sending import send_errors as refusals
from ray_messaging.sending.delivery.frame_router import UNOWNED, FrameRouter, OutboundFrame
from ray_messaging.sending.delivery.mailbox_queues import MailboxQueues
from ray_messaging.transports.base import LOG, TOO_LARGE_TAKER, Transport


class DeliveryRecorder:
    """Give the rows of crates that arrived their fate; where the log must hear of them first, queue what tells it."""

    def __init__(self, transport: Transport, directory: Directory, cutter: FrameRouter, lanes: MailboxQueues) -> None:
        self._transport = transport
        self._directory = directory
        self._cutter = cutter
        self._lanes = lanes

    def arrived(self, crate: OutboundFrame, takers: list[int]) -> None:
        """Take note that the server has a crate; `takers` are those of its publications."""
        if crate.told is not None:
            self._settle(crate, crate.told.mailbox, crate.told.fate)
            return
        if crate.mailbox == LOG:
            crate.posting.stop(crate.rows_of_posting())
            return
        fates = DELIVERED if crate.mailbox != UNOWNED else self._fates(crate, np.array(takers))
        if self._transport.logs_apart and self._directory.logged:
            # Whoever waits is told when the log knows: what has a receipt is in the log.
            for told in self._cutter.tell(crate, fates):
                self._lanes.queue(told)
        else:
            self._settle(crate, crate.mailbox, fates)

    def _fates(self, crate: OutboundFrame, takers: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the fate of each publication; those that the server refused are told so, and get none."""
        refused = np.flatnonzero(takers == TOO_LARGE_TAKER)
        for row in refused.tolist():
            crate.posting.fail(crate.rows_of_posting()[[row]], refusals.not_published(crate.publish[row]))
        fates = np.where(takers > 0, PUBLISHED, UNDELIVERABLE)
        fates[refused] = UNKNOWN
        return fates

    def _settle(self, crate: OutboundFrame, mailbox: str, fates: int | NDArray[np.intp]) -> None:
        """Give rows their fate, where a mailbox has them as soon as all of theirs have them."""
        if mailbox != UNOWNED and isinstance(fates, int):
            crate.posting.deliver(crate.rows, mailbox, fates)
            return
        if crate.posting.copies is not None:
            crate.posting.copies[crate.rows_of_posting()] = 0
        if np.any(np.asarray(fates) == UNDELIVERABLE):
            crate.posting.outcome.note_addresses(crate.posting.batch)
        crate.posting.settle(crate.rows_of_posting(), fates if isinstance(fates, int) else fates.astype(np.uint8))
