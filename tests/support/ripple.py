"""A model most of whose 40 agents sleep in most steps."""

import sys

from ray import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


def ripple(me, inbox):
    """Pass on what was heard, and do nothing where nothing is asked of the agent."""
    asleep = me.step > 0 and not inbox and not me.blocked and me.state["left"] == 0
    if asleep:
        return
    me.state["called"] = [*me.state["called"], me.step]
    me.state["left"] = max(me.state["left"] - 1, 0)
    if me.state["left"]:
        me.stay_active()
    for message in inbox:
        me.state["heard"].append((message.from_id, message.payload["hops"]))
        if message.payload["hops"]:
            me.send((me.id * 7 + 3) % 40, {"hops": message.payload["hops"] - 1}, deliver_at=me.step + 1 + me.id % 2)
    if me.step == 0 and me.id % 8 == 0:
        me.send(me.id + 1, {"hops": 5})
    if me.id == 17 and me.step == 2:
        me.move("group0")
    if me.id == 20 and me.step == 3:
        me.stop()


def ripple_start(me):
    return {"called": [], "heard": [], "left": 6 if me.id == 5 else 0}
