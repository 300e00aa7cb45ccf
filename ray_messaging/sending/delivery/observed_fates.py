"""The fates of a batch, told to an observer."""

from collections import Counter

from ray_messaging.observability.observer import Observer
from ray_messaging.receipt import Outcome


def tell_fates(observer: Observer, outcome: Outcome) -> None:
    """Tell an observer the fates of a batch, and the numbers that each rule blocked."""
    if len(outcome):
        observer.batch_sent(outcome.fates, outcome.consumption(0))
    for rule, messages in Counter(rule for rule, _ in outcome.blocks.values()).items():
        observer.messages_blocked(rule, messages)
