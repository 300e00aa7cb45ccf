"""Default limits, timeouts and leases that several folders share. A default that users may set is in `config.py`."""

MIB = 2**20

# The default limits of a mailbox, which also limit the event log's own stream. Senders to a full mailbox wait.
MAILBOX_MESSAGES = 1_000_000
MAILBOX_BYTES = 256 * MIB

# The limits of a box, which holds the messages that a mailbox reads in one step. A box is emptied only at the end of
# the step. So a step that sends to a full box fails at once, because waiting would not help.
BOX_ROWS = 10_000_000
BOX_BYTES = 2_048 * MIB

# The most bytes in boxes that the event log has not written yet. Above this the run waits until the log is only a few
# steps behind.
LAG_BYTES = 64 * MIB

# The largest number of servers that an experiment may have. Each process needs a connection to each server.
SHARDS = 128

# A frame is an encoded batch of messages that is one entry of a mailbox. FRAME_ROWS and FRAME_BYTES are its default
# limits. A reader refuses any frame of more than FRAME_LIMIT bytes.
FRAME_ROWS = 16_384
FRAME_BYTES = 16 * MIB
FRAME_LIMIT = 256 * MIB

# The limits of a sender's batch. They keep a batch to a few frames, so that the sender soon goes on to the next batch.
# BATCH_BYTES limits a batch of large payloads, BATCH_ROWS a batch of small payloads.
BATCH_ROWS = FRAME_ROWS
BATCH_BYTES = 32 * MIB

# Senders make no frame larger than this, unless a single payload is larger. The server executes one script call at a
# time, and all other clients wait. A call with 2 MiB takes some milliseconds, a call with 32 MiB half a second.
CALL_BYTES = 2 * MIB

# The most rows of typed columns in a batch, and in a frame for a mailbox whose own limit (`frame_rows`) is at least
# FRAME_ROWS. The number is higher than FRAME_ROWS, because such rows are small and are not Python objects. With two
# columns of numbers a frame of COLUMN_ROWS has 1.5 MiB, and takes a fifth less time per row than a frame of FRAME_ROWS.
COLUMN_ROWS = 65_536

# The most pairs of sender and hearer in one batch of broadcasts. That many pairs take some ten MiB of memory. A single
# broadcast with more hearers is a batch of its own.
BROADCAST_PAIRS = 2**18

# The most bytes of one payload as JSON, which is the highest `MessagingConfig.payload_bytes`.
PAYLOAD_LIMIT = 64 * MIB

# The most bytes of a transaction, which is one call of a script. The server is blocked while it copies these bytes, and
# Redis disconnects a client that sends a gigabyte.
TRANSACTION_BYTES = 256 * MIB

# A step's frame of at least BODY_BYTES may be stored on another server than the box to which it belongs. The frame is
# then called a body. From 16 KiB on, this saves the box's server more time than it costs the other server. When a step
# is over, its boxes are dropped. A sender deletes the bodies of such steps from a server each time that it has sent
# BODY_ARREARS bytes to that server.
BODY_BYTES = 16 * 2**10
BODY_ARREARS = 64 * MIB

# The most bytes of dead letters of an experiment. Above this the oldest are dropped.
DEAD_BYTES = 256 * MIB

# About how many keys the server looks at in one SCAN call.
SCAN_COUNT = 1_000

# Seconds until an embedded server counts as unreachable. The time is long, because the server may wait for a core while
# dozens of processes start.
EMBEDDED_CONNECT_S = 30.0

# Timeouts in seconds. CONNECT_TIMEOUT_S is for connecting to a server, RULE_TIMEOUT_S for a rule that judges one batch.
# LOG_NEWS_TIMEOUT_S is for one call that waits until the event log has new rows.
CONNECT_TIMEOUT_S = 5.0
RULE_TIMEOUT_S = 10.0
LOG_NEWS_TIMEOUT_S = 10.0

# Default timeouts in seconds. ANSWER_TIMEOUT_S is for the answer to a question, MOVE_TIMEOUT_S for moving or removing
# agents. SLOW_RULE_TIMEOUT_S is for a slow rule that judges one message, and for a StepRule that judges one step.
# MODERATOR_TIMEOUT_S is for a model that moderates one message.
ANSWER_TIMEOUT_S = 60.0
MOVE_TIMEOUT_S = 30.0
SLOW_RULE_TIMEOUT_S = 120.0
MODERATOR_TIMEOUT_S = 30.0

# The default leases in seconds. If a messager gives no sign of life for LEASE_S, its mailbox may be taken over. If a
# `Group` object does not acknowledge fetched messages within LOAN_S, the group's next fetch returns the messages again.
LEASE_S = 30.0
LOAN_S = 60.0

# Seconds for which a step waits for a server that it cannot reach, such as during a cut of the network. After a short
# cut the group goes on. Ray takes 30 to 66 s to notice that a machine is dead, and then starts the machine's groups
# elsewhere. The wait is longer than that, so that no group fails before Ray has acted.
CUT_TIMEOUT_S = 100.0

# TCP settings, with which either end of a connection soon notices that the other end is gone. A connection breaks if
# sent bytes are not acknowledged for UNACKNOWLEDGED_S seconds. An idle connection is probed after KEEPALIVE_IDLE_S
# seconds, and breaks if KEEPALIVE_PROBES probes, KEEPALIVE_PROBE_S seconds apart, get no answer.
UNACKNOWLEDGED_S = 15.0
KEEPALIVE_IDLE_S, KEEPALIVE_PROBE_S, KEEPALIVE_PROBES = 10, 5, 3

# The most seconds that one call waits for the server to report a change of the steps. With this limit the caller
# notices a server that does not answer.
STEP_NEWS_TIMEOUT_S = 5.0
# After this many seconds without a sign of life, a group's driver (the task that takes the group through the steps)
# counts as gone. So does the task of the interceptor that closes each step after all groups.
STEP_LEASE_S = 10.0

# Every CALLS_TOLD_S seconds, a group tells the interceptor which calls through `me.remember` are under way.
CALLS_TOLD_S = 1.0
