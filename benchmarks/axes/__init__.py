"""One axis per file: `ABOUT` describes it, `measure(plan)` yields its figures.

python -m benchmarks.axes NAME < a Plan as JSON
"""

# Standard library only: the command's --help and its report read this.
AXES = {
    "agents": "number of agents: rates and lone messages, and a million of them on this machine",
    "groups": "number of groups that write to each other, in a ring",
    "payload": "payload size, beside the same bytes by redis-py",
    "interceptor": "cost of the interceptor and its rules",
    "log": "cost of the event log, and its completeness",
    "fan_out": "number of recipients of one payload",
    "workers": "number of Ray tasks that drive the groups through their handles",
    "latency": "a lone message from send to inbox, idle and at half load, stage by stage",
    "processor": "processor time of a message in each process",
    "tail": "effect of a slow receiver, huge payloads and a slow rule on others",
    "startup": "time until the experiment can be used",
    "memory": "bytes per agent and per waiting message",
    "crash": "mailbox contents after its receiver is killed",
    "limits": "limits of the machine: the codec, the store, Ray's round trip, loopback",
}
