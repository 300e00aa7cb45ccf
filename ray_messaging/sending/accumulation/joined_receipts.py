"""The end of a bulk send: its parts' receipts as one, or one error that speaks for all of them."""

import asyncio
from collections.abc import Sequence

from ray_messaging.errors import MessagingError, OutcomeUnknown
from ray_messaging.receipt import Receipt, Receipts


async def joined(futures: "Sequence[asyncio.Future[Receipts]]", stopped: MessagingError | None, rows: int) -> Receipts:
    """Wait for all parts of a bulk send; one error speaks for it, with what is known of each of its rows.

    It is the first OutcomeUnknown, where there is one: only that warns whoever would send again.
    """
    if len(futures) == 1 and stopped is None:
        return await futures[0]
    results = await asyncio.gather(*futures, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)] + ([stopped] if stopped else [])
    if not errors:
        return Receipts([part for result in results if isinstance(result, Receipts) for part in result.parts])
    error = next((each for each in errors if isinstance(each, OutcomeUnknown)), errors[0])
    if isinstance(error, MessagingError):
        found: list[Receipt | None] = []
        for result in results:
            found += result if isinstance(result, Receipts) else getattr(result, "receipts", None) or []
        error.receipts = found + [None] * (rows - len(found))
        error.message_ids = [id_ for each in errors for id_ in getattr(each, "message_ids", ())]
    raise error
