"""SMS Spam Collection through a moderator that asks a classifier over HTTP, and through a pattern of words.

All messages are sent, each once. Precision and recall are those of the blocked messages. The log must account for every
message: one fate each, and the rule of each blocked one.

python -m benchmarks.interception.moderation [--data FILE] [--json FILE]
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

from benchmarks.interception.classifier import AskClassifier, Text, read_collection, serving, training_rows
from ray_messaging import Messaging, rules
from ray_messaging.eventlog.event_log import EventLog

DATA = Path("/work/shared/data/sms-spam/SMSSpamCollection.gz")
SEED = 7
SENDERS = RECEIVERS = 1000

# Made by hand, in knowledge of the whole collection: how well they do is no test of them. The regexes are for prices,
# short codes, telephone numbers and web addresses.
SPAM_WORDS = (
    "prize", "claim", "urgent", "awarded", "guaranteed", "winner", "ringtone", "ringtones", "tone", "tones", "nokia",
    "camcorder", "voucher", "vouchers", "freemsg", "mobileupd8", "txting", "unsubscribe", "landline", "cashbalance",
)  # fmt: skip
SPAM_REGEXES = (
    r"£\s?\d",
    r"\b(?:www\.|http)",
    r"\b\d{5}\b",
    r"\b0[789]\d{8,9}\b",
    r"\b\d+p(?:er)?\b",
    r"\btext stop\b",
)


class Unaccounted(SystemExit):
    """The log and the receipts do not say the same."""


def pattern() -> Any:
    """Build the rule of words and regexes."""
    return rules.Pattern(words=SPAM_WORDS, regexes=SPAM_REGEXES, name="spam_words")


def send_all(messaging: Messaging, texts: Sequence[Text]) -> tuple[Any, float]:
    """Send every text between random agents of two groups; return receipts in order, and the time it took (s)."""
    senders = messaging.create_group("senders", range(SENDERS))
    receivers = messaging.create_group("receivers", range(SENDERS, SENDERS + RECEIVERS))
    rng = np.random.default_rng(SEED)
    from_ids = rng.integers(0, SENDERS, len(texts))
    to_ids = rng.integers(SENDERS, SENDERS + RECEIVERS, len(texts))
    start = time.perf_counter()
    receipts = senders.send_columns(from_ids, to_ids, [{"content": text} for text, _ in texts])
    took = time.perf_counter() - start
    fetched = 0
    while fetched < int(receipts.sent.sum()):
        came = len(receivers.fetch_messages(timeout=30.0))
        if not came:
            raise Unaccounted(f"{int(receipts.sent.sum())} were sent, {fetched} of them arrived")
        fetched += came
    return receipts, took


def account(log: EventLog, receipts: Any, rule: str) -> dict[str, int]:
    """Hold the log against the receipts; return the counts of fates and rules. Raises Unaccounted."""
    log.balance()
    blocked = log.query(fate="blocked").to_pylist()
    said = {receipt.message_id: receipt.rule for receipt in receipts if receipt.fate == "blocked"}
    logged = {row["message_id"]: row["rule"] for row in blocked}
    if said != logged or len(blocked) != len(logged) or set(logged.values()) - {rule}:
        raise Unaccounted(
            f"blocked by the receipts {len(said)}, in the log {len(blocked)}, rules {set(logged.values())}"
        )
    counted = log.count(by=["fate", "rule"]).to_pylist()
    found = {" by ".join(filter(None, (row["fate"], row["rule"]))): row["count"] for row in counted}
    if found != {"delivered": len(receipts) - len(said), f"blocked by {rule}": len(said)}:
        raise Unaccounted(f"{len(receipts)} sent, {len(said)} blocked; the log counts {found}")
    return found


def quality(texts: Sequence[Text], blocked: Sequence[bool], rows: Sequence[int]) -> dict[str, float]:
    """Return precision and recall of the blocked messages, over some rows."""
    hits = sum(blocked[row] and texts[row].spam for row in rows)
    return {
        "precision": hits / max(1, sum(blocked[row] for row in rows)),
        "recall": hits / max(1, sum(texts[row].spam for row in rows)),
        "messages": len(rows),
    }


def unseen_rows(texts: Sequence[Text]) -> list[int]:
    """Return the rows with texts that the classifier has not seen in training: many texts occur twice."""
    learned = {texts[row].text for row in training_rows(len(texts), SEED)}
    return [row for row, (text, _) in enumerate(texts) if text not in learned]


def run(texts: Sequence[Text], make_rule: Callable[[], Any]) -> dict[str, Any]:
    """Send the collection through one rule, in an experiment of its own."""
    rule = make_rule()
    with tempfile.TemporaryDirectory() as log_dir:
        with Messaging.start(f"moderation-{rule.name}", rules=[rule], log_dir=log_dir) as messaging:
            receipts, took = send_all(messaging, texts)
            fates = account(messaging.log, receipts, rule.name)
        account(EventLog.open(log_dir), receipts, rule.name)  # the folder says the same without the experiment
        blocked = [fate == "blocked" for fate in receipts.fates.tolist()]
    return {
        "rule": rule.name,
        "all": quality(texts, blocked, range(len(texts))),
        "unseen": quality(texts, blocked, unseen_rows(texts)),
        "messages_per_s": len(texts) / took,
        "fates": fates,
    }


def table(rows: Sequence[dict[str, Any]], count: int) -> Table:
    """Draw one row per rule."""
    made = Table(title=f"SMS Spam Collection: {count:,} messages sent once each, all found in the log")
    for column in ("rule", "precision", "recall", "unseen: precision", "recall", "messages/s", "the log counts"):
        made.add_column(column, justify="left" if column in {"rule", "the log counts"} else "right")
    for row in rows:
        figures = [f"{row[part][what]:.1%}" for part in ("all", "unseen") for what in ("precision", "recall")]
        fates = "\n".join(f"{number:,} {fate}" for fate, number in sorted(row["fates"].items()))
        made.add_row(row["rule"], *figures, f"{row['messages_per_s']:,.0f}", fates)
    return made


def main() -> None:
    """Run both rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    texts = read_collection(args.data)
    console = Console(width=None if sys.stdout.isatty() else 130)
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    with (
        console.status("sending ...") if sys.stdout.isatty() else nullcontext(),
        serving(args.data, SEED) as port,
    ):
        rows = [run(texts, lambda: rules.Moderator(AskClassifier(port), name="classifier")), run(texts, pattern)]
    console.print(table(rows, len(texts)))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
