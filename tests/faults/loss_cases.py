"""Cases of servers that lose data they had taken: the promise is weaker, and the cases measure by how much."""

import re
import shutil

from support.cluster import stopped

from faults import injector
from faults.case import Case, weaker
from faults.stage import Stage

TORN_BYTES = 20_000
PER_CALL = 12


def torn_tail(folder):
    """Kill the server, and tear the end off its append-only file, which nobody has read yet."""
    with Stage(folder, appendfsync="always") as stage:
        sender, [receiver] = stage.talk(per_call=PER_CALL)
        with stopped(receiver.pid):
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


def goes_back(folder):
    """Put older data in the place of the server's, from before the sender came."""
    with Stage(folder, appendfsync="always") as stage:
        data, older = stage.server.folder, folder / "older"
        stage.receiver([0, 1])
        stage.server.kill()
        shutil.copytree(data, older)
        stage.server.start()
        sender = stage.sender([1001, 1002], [0, 1], rate=100, per_call=PER_CALL)
        stage.more_received(500)
        stage.server.kill()
        shutil.rmtree(data)
        shutil.copytree(older, data)
        stage.server.start()
        stage.facts["sender_said"] = sender.hear("failed")["error"]
        stage.replace(sender)
        stage.healed()
        stage.more_received(500)
        return stage.finish()


def told(account, sender):
    """Note how often a sender reported the loss; it must have."""
    account.facts["senders_said"] = said = sender.logged("the server has lost")
    assert said, "the sender did not say that something was lost"
    return account


def flushed(folder):
    """Empty the server in the middle: its clients must get an error."""
    with Stage(folder, appendfsync="everysec") as stage:
        sender, receivers = stage.talk(2)
        with stage.server.client() as client:
            client.flushall()
        stage.healed()
        # A receiver that has nothing to commit hears of it when it renews its lease.
        for at, worker in enumerate([sender, *receivers]):
            said = worker.hear("failed")
            stage.facts[f"{worker.options['role']}_{at}"] = said["error"]
            worker.kill()
        return stage.count()


CASES = [
    Case(
        "torn tail of the AOF",
        torn_tail,
        weaker("what the torn bytes held may be lost, which senders say; nothing twice, in order", "lost"),
        quick=True,
    ),
    Case(
        "server goes back to older data",
        goes_back,
        weaker("what came since and was not read may be lost; senders end with an error that says so", "lost"),
    ),
    Case(
        "FLUSHALL in the middle",
        flushed,
        weaker("what waited is lost; senders and receivers end with an error that says so", "lost"),
    ),
]
