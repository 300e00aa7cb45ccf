"""What a messager is doing, where no public call says it yet."""


def hosted_by(messager):
    """Return the agents that a messager hosts."""
    return [*messager.subscription.hosted]


def is_withheld(messager, agent):
    """Return whether an agent is leaving: its messages are handed out no more."""
    withheld = messager.subscription.inbox._withheld
    return withheld is not None and agent in withheld


def cuts_of_ingress(messager):
    """Return how often a messager has lost the connection by which it hears foreign clients."""
    return messager.engine.transport._ingress.cuts


def tasks_that_fail(messager):
    """Return for each task of a messager that has an error now its text."""
    tasks = [*messager.engine.loops(), *messager.engine.transport.loops()]
    return {task.name: task.error for task in tasks if task.error}


def waits_for_room(messager):
    """Return whether a messager will try a send again, as a mailbox was full."""
    return messager.engine.accumulator.send_loop._frames.retry_at is not None


def reads_nothing(messager):
    """Return whether an MQTT messager has stopped reading, because its inbox is full."""
    return not messager._in.room.is_set()
