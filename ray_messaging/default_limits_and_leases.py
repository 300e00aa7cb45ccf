"""Default limits, timeouts and leases that several folders share. A default that users may set is in `config.py`."""

MIB = 2**20

# The default limits of a mailbox, which also limit the event log's own stream. Senders to a full mailbox wait.
MAILBOX_MESSAGES = 1_000_000
MAILBOX_BYTES = 256 * MIB

# The limits of a box, which has what a mailbox reads in one step. A box is emptied only at the end of the step, so no
# sender waits for a full box.
BOX_ROWS = 10_000_000
BOX_BYTES = 2_048 * MIB

# If the boxes that wait for the event log have more bytes than this, the run waits until the log is only a few steps
# behind.
LAG_BYTES = 64 * MIB

# The most servers of an experiment. Each process needs a connection to each server.
SHARDS = 128

# The default limits of one entry of a mailbox, which is a frame. A reader refuses any frame above FRAME_LIMIT.
FRAME_ROWS = 16_384
FRAME_BYTES = 16 * MIB
FRAME_LIMIT = 256 * MIB

# The limits of a sender's batch. A batch has only a few frames, so that verdicts and writes alternate often enough.
# BATCH_BYTES limits a batch of large payloads, BATCH_ROWS a batch of small payloads.
BATCH_ROWS = FRAME_ROWS
BATCH_BYTES = 32 * MIB

# The most bytes of a frame that is written, unless one payload is larger. A script call holds up all clients of the
# server, for a time that grows faster than its size: 2 MiB take some ms, 32 MiB half a second.
CALL_BYTES = 2 * MIB

# Rows of typed columns are small and are not Python objects, so a batch may have more of them, and so may a frame for a
# mailbox that accepts FRAME_ROWS. With two columns of numbers such a frame has 1.5 MiB, and takes a fifth less work per
# row than a frame of FRAME_ROWS.
COLUMN_ROWS = 65_536

# The most pairs of sender and hearer in one batch of broadcasts, unless one sender has more: some ten MiB of memory.
BROADCAST_PAIRS = 2**18

# The most bytes of one payload as JSON, which is the highest `MessagingConfig.payload_bytes`.
PAYLOAD_LIMIT = 64 * MIB

# The most bytes of a transaction, which is one call of a script. The server is blocked while it copies these bytes, and
# Redis disconnects a client that sends a gigabyte.
TRANSACTION_BYTES = 256 * MIB

# A step's frame of at least BODY_BYTES is large: its body may be on another server than its box. For 16 KiB this saves
# the box's server more than it costs the other server. A sender deletes the bodies of dropped steps from a server each
# time that it has sent BODY_ARREARS bytes to that server.
BODY_BYTES = 16 * 2**10
BODY_ARREARS = 64 * MIB

# The most bytes of dead letters of an experiment. Above this the oldest are dropped.
DEAD_BYTES = 256 * MIB

# The number of keys in one SCAN of the server.
SCAN_COUNT = 1_000

# Seconds until an embedded server counts as unreachable. It is long because dozens of processes that start may use all
# cores.
EMBEDDED_CONNECT_S = 30.0

# Timeouts in seconds: to connect to a server; for a rule to judge one batch; for one call that waits for news of the
# event log.
CONNECT_TIMEOUT_S = 5.0
RULE_TIMEOUT_S = 10.0
LOG_NEWS_TIMEOUT_S = 10.0

# Default timeouts in seconds: for the answer to a question; for agents to leave their group; for a slow rule, or a
# StepRule, to judge one message or step; for a model to moderate one message.
ANSWER_TIMEOUT_S = 60.0
MOVE_TIMEOUT_S = 30.0
SLOW_RULE_TIMEOUT_S = 120.0
MODERATOR_TIMEOUT_S = 30.0

# The default leases in seconds: a mailbox whose messager gave no sign of life for LEASE_S may be taken over; messages
# that a handle fetched and did not acknowledge within LOAN_S are delivered to other handles.
LEASE_S = 30.0
LOAN_S = 60.0

# Seconds for which a step waits for a server that it cannot reach. It is longer than Ray takes to find a dead machine,
# 30 to 66 s: until then the group may run on, and after that Ray starts it elsewhere.
CUT_TIMEOUT_S = 100.0

# Seconds after which an end of a connection finds that the other end is gone, however long the kernel would retransmit:
# an idle connection is asked for a sign of life after KEEPALIVE_IDLE_S, and then KEEPALIVE_PROBES times.
UNACKNOWLEDGED_S = 15.0
KEEPALIVE_IDLE_S, KEEPALIVE_PROBE_S, KEEPALIVE_PROBES = 10, 5, 3

# Seconds: the longest wait for news of steps in one call, so that a server that does not answer is noticed; and the
# time without a sign of life after which a step's driver, or its supervisor, counts as gone.
STEP_NEWS_TIMEOUT_S = 5.0
STEP_LEASE_S = 10.0
