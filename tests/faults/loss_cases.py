"""Cases of servers that lose data they had taken: the promise is weaker, and the cases measure by how much."""

import re

from faults import injector
from faults.case import Case, weaker
from faults.stage import Stage

TORN_BYTES = 20_000
PER_CALL = 12


def torn_tail(folder):
    """Kill the server, and tear the end off its append-only file, which nobody has read yet."""
    with Stage(folder, appendfsync="always") as stage:
        sender, [receiver] = stage.talk(per_call=PER_CALL)
        with injector.stopped(receiver.pid):
            stage.more_sent(1000)
            stage.server.kill()
            torn = injector.tear(stage.server, TORN_BYTES)
            stage.server.start()
        stage.healed()
        stage.more_received(300)
        account = stage.finish()
        held = len(re.findall(rb'\{"n":', torn))
        account.facts |= {"torn_bytes": len(torn), "messages_in_it": held}
        assert account.lost <= held + PER_CALL, account  # of a frame that was torn in two, nothing is left
        return told(account, sender)


def told(account, sender):
    """Note how often a sender reported the loss; it must have."""
    account.facts["senders_said"] = said = sender.logged("the server lost")
    assert said, "the sender did not say that something was lost"
    return account


CASES = [
    Case(
        "torn tail of the AOF",
        torn_tail,
        weaker("what the torn bytes held may be lost, which senders say; nothing twice, in order", "lost"),
    ),
]
