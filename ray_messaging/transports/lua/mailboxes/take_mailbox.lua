-- Enter a mailbox's record in the directory and take the mailbox.
--
-- KEYS[1] meta  hash: directory, log, born = the last incarnation of a mailbox, wide = 1 once somebody may take all
--         agents' channels by one pattern, life, ceiling: see id_ceiling.lua, format, shards:
--         see claim_experiment.lua  [2] records  [3] changes: as in load_directory.lua
-- KEYS[4] state  hash: epoch, born (which incarnation of its name: the stream is mailbox:<name>:<born>), since = ms
--         when it came, entry and row of the cursor, keep, messages, bytes, max_messages, max_bytes, leased, owner,
--         exclusive, reader = who took it last, blob = what the last transaction left, acked: see move_cursor.lua; while an event log is registered:
--         logged, unlogged, unlogged_bytes, taken, taken_bytes (see note_written.lua)
-- KEYS[5] lease  string: the owner's messager lives, see renew_lease.lua
-- KEYS[6] log    stream: an entry (m = mailbox:born) wakes the log's writer
-- KEYS[7] step:<group>  hash: its group has joined the steps  [8] steps: see step_barrier.lua
-- ARGV[1] directory version the record was checked against  [2] mailbox  [3] record  [4] the reader's epoch or -1
-- ARGV[5] max messages  [6] max bytes  [7] lease in ms  [8] leased 1/0  [9] owner
-- ARGV[10] 1: only take over what is there, under the same record  [11] 1: it alone listens for its agents, else 0
-- ARGV[12] the caller: it keeps the epoch that it took last  [13] 1: it may take all agents' channels by one pattern
-- ARGV[14] a lease of another owner that is over, as the caller has seen it, or ""  [15] the caller's format  [16] number of shards
-- Returns {0, version, epoch, entry, row, born, blob and acked where it was taken over}; {1} version is stale; {2} fenced;
-- {3, owner, lease, 1 where it may be over by the server's clock} held by another owner; {4} it would take more than a
-- take-over; {5} the server has lost the mailbox, or a reader's epoch
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[1] then return {1} end
local state = redis.call('HMGET', KEYS[4], 'epoch', 'entry', 'row', 'owner', 'born', 'reader')
if ARGV[4] ~= '-1' and state[1] ~= ARGV[4] then
  return {state[1] and tonumber(state[1]) > tonumber(ARGV[4]) and 2 or 5}
end
local lease = redis.call('GET', KEYS[5])
if ARGV[9] ~= '' and state[4] and state[4] ~= '' and state[4] ~= ARGV[9] and lease and lease ~= ARGV[14] then
  local lasts, renewed, now = 0, 0, milliseconds()
  for a, b in lease:gmatch(':(%d+):(%d+)$') do lasts, renewed = tonumber(a), tonumber(b) end
  return {3, state[4], lease, (now < renewed or now > renewed + lasts) and 1 or 0}
end
if ARGV[10] == '1' and (not state[1] or redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3]) then return {4} end
local born = state[5]
if not state[1] then
  born = raise_number(KEYS[1], 'born')
  redis.call('HSET', KEYS[4], 'messages', 0, 'bytes', 0, 'entry', '0-0', 'row', 0, 'keep', '0-0', 'born', born,
             'since', string.format('%.0f', milliseconds()))
  if redis.call('EXISTS', KEYS[7]) == 1 then redis.call('HSET', KEYS[4], 'stepped', 1) end
  if redis.call('HEXISTS', KEYS[1], 'log') == 1 then
    redis.call('HSET', KEYS[4], 'logged', '0-0', 'unlogged', 0, 'unlogged_bytes', 0, 'taken', 0, 'taken_bytes', 0)
    redis.call('XADD', KEYS[6], '*', 'm', ARGV[2] .. ':' .. born)
  end
end
local epoch, left = ARGV[4], {false, false}
if epoch == '-1' then
  epoch = state[1]
  -- An attempt that was given up may come after the one that followed it: it must not fence it.
  if not epoch or state[6] ~= ARGV[12] then
    epoch = raise_number(KEYS[4], 'epoch')
    redis.call('HSET', KEYS[4], 'reader', ARGV[12], 'handled', 0, 'handled_bytes', 0)
    redis.call('HDEL', KEYS[4], 'failures')
  end
  left = redis.call('HMGET', KEYS[4], 'blob', 'acked')
end
redis.call('HSET', KEYS[4], 'max_messages', ARGV[5], 'max_bytes', ARGV[6], 'leased', ARGV[8], 'owner', ARGV[9],
           'exclusive', ARGV[11])
redis.call('HSETNX', KEYS[1], 'format', ARGV[15])
redis.call('HSET', KEYS[1], 'shards', ARGV[16])
renew_lease(KEYS[5], ARGV[7], lift_ceiling(KEYS[1], tonumber(ARGV[7])))
if ARGV[13] == '1' then redis.call('HSET', KEYS[1], 'wide', 1) end
local version = tonumber(ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then
  version = redis.call('HINCRBY', KEYS[1], 'directory', 1)
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
  redis.call('HSET', KEYS[3], ARGV[2], version)
  if state[1] and redis.call('EXISTS', KEYS[7]) == 1 then date_change(KEYS[1], KEYS[8], version) end
end
return {0, version, tonumber(epoch), state[2] or '0-0', tonumber(state[3] or 0), tonumber(born), left[1], left[2]}
