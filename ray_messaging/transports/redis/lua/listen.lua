-- Enter a mailbox's record in the directory and take the mailbox.
--
-- KEYS[1] meta  hash: directory, log, born = incarnations of mailboxes given out so far  [2] records  [3] changes: as in
--         directory.lua
-- KEYS[4] state  hash: epoch, born (which incarnation of its name: the stream is mailbox:<name>:<born>), entry and row
--         of the cursor, keep, messages, bytes, max_messages, max_bytes, leased, owner; while an event log is
--         registered: logged, unlogged, unlogged_bytes, taken, taken_bytes (see logged.lua)
-- KEYS[5] lease  string, expires: the owner's messager lives
-- KEYS[6] log    stream: an entry (m = mailbox:born) wakes the log's writer
-- ARGV[1] directory version the record was checked against  [2] mailbox  [3] record  [4] the reader's epoch or -1
-- ARGV[5] max messages  [6] max bytes  [7] lease in ms  [8] leased 1/0  [9] owner
-- ARGV[10] 1: only take over what is there, under the same record
-- Returns {0, version, epoch, entry, row, born}; {1} version is stale; {2} fenced; {3, owner} held by another live owner;
-- {4} it would take more than a take-over
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[1] then return {1} end
local state = redis.call('HMGET', KEYS[4], 'epoch', 'entry', 'row', 'owner', 'born')
if ARGV[4] ~= '-1' and state[1] ~= ARGV[4] then return {2} end
if ARGV[9] ~= '' and state[4] and state[4] ~= '' and state[4] ~= ARGV[9] and redis.call('EXISTS', KEYS[5]) == 1 then
  return {3, state[4]}
end
if ARGV[10] == '1' and (not state[1] or redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3]) then return {4} end
local born = tonumber(state[5])
if not state[1] then
  born = redis.call('HINCRBY', KEYS[1], 'born', 1)
  redis.call('HSET', KEYS[4], 'messages', 0, 'bytes', 0, 'entry', '0-0', 'row', 0, 'keep', '0-0', 'born', born)
  if redis.call('HEXISTS', KEYS[1], 'log') == 1 then
    redis.call('HSET', KEYS[4], 'logged', '0-0', 'unlogged', 0, 'unlogged_bytes', 0, 'taken', 0, 'taken_bytes', 0)
    redis.call('XADD', KEYS[6], '*', 'm', ARGV[2] .. ':' .. born)
  end
end
local epoch = ARGV[4]
if epoch == '-1' then
  epoch = redis.call('HINCRBY', KEYS[4], 'epoch', 1)
  redis.call('HSET', KEYS[4], 'handled', 0, 'handled_bytes', 0)
end
redis.call('HSET', KEYS[4], 'max_messages', ARGV[5], 'max_bytes', ARGV[6], 'leased', ARGV[8], 'owner', ARGV[9])
redis.call('SET', KEYS[5], epoch, 'PX', ARGV[7])
local version = tonumber(ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[3] then
  version = redis.call('HINCRBY', KEYS[1], 'directory', 1)
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
  redis.call('HSET', KEYS[3], ARGV[2], version)
end
return {0, version, tonumber(epoch), state[2] or '0-0', tonumber(state[3] or 0), born}
