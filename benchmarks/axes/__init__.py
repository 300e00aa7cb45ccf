"""One axis per file: `ABOUT` says what is measured, `measure(plan)` yields its figures.

python -m benchmarks.axes NAME < a Plan as JSON
"""

# Standard library only: the command's --help and its report read this.
AXES = {
    "agents": "how many agents: rates and lone messages, and a million of them on this machine",
    "groups": "how many groups write to each other, in a ring",
    "payload": "how large a payload is, beside the same bytes by redis-py",
    "interceptor": "what the interceptor and its rules cost",
    "log": "what the event log costs, and that it has everything",
    "fan_out": "how many recipients one payload has",
    "workers": "how many Ray tasks drive the groups through their handles",
    "latency": "a lone message from send to inbox, idle and at half load, stage by stage",
    "processor": "where the processors' time goes: what each process takes of a message",
    "tail": "what others see of a slow receiver, huge payloads and a slow rule",
    "startup": "how long it takes until there is something to use",
    "memory": "bytes per agent and per message that waits",
    "crash": "what a mailbox holds when its receiver is killed",
    "limits": "what the machine allows: the codec, the store, Ray's round trip, loopback",
}
