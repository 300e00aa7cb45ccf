"""One axis per file: `measure(plan)` yields its figures.

python -m benchmarks.axes NAME < a Plan as JSON
"""

# Standard library only: the command's --help and its report read this. The rooms are folders.
ROOMS = {
    "scale": {
        "agents": "number of agents: rates and lone messages, and a million of them on this machine",
        "groups": "number of groups that write to each other, in a ring",
        "payload": "payload size, beside the same bytes by redis-py",
        "fan_out": "number of recipients of one payload",
        "workers": "number of Ray tasks that drive the groups through their handles",
    },
    "cost": {
        "interceptor": "cost of the interceptor and its rules",
        "log": "cost of the event log, and its completeness",
        "metrics": "cost of metrics and of tracing, by turns with none",
        "processor": "processor time of a message in each process",
        "memory": "bytes per agent and per waiting message",
    },
    "delay": {
        "latency": "a lone message from send to inbox, idle and at half load, stage by stage",
        "tail": "effect of a slow receiver, huge payloads and a slow rule on others",
        "startup": "time until the experiment can be used",
        "crash": "mailbox contents after its receiver is killed",
    },
    "bounds": {
        "limits": "limits of the machine: the codec, the store, Ray's round trip, loopback",
    },
}
AXES = {name: about for room in ROOMS.values() for name, about in room.items()}
