#!lua flags=allow-oom
-- Register the event log; whoever wrote it before is fenced. Runs when memory is full: a writer that comes back frees
-- some.
--
-- KEYS[1] meta       hash: log = 1 while a log is registered, directory = version, log_epoch = the last writer's
-- KEYS[2] changes    hash: its fields are the mailboxes
-- KEYS[3] log state  hash: epoch, born = 0, limits of the log stream (max_messages, max_bytes), and as a mailbox's:
--                    unlogged, unlogged_bytes, taken, taken_bytes, logged, last
-- ARGV[1] max messages  [2] max bytes of the log stream  [3] prefix of this experiment's keys: state:<mailbox> is a hash
-- Returns the writer's epoch
local first = redis.call('HSETNX', KEYS[1], 'log', 1) == 1
local epoch = redis.call('HINCRBY', KEYS[1], 'log_epoch', 1)
redis.call('HSET', KEYS[3], 'epoch', epoch, 'born', 0, 'max_messages', ARGV[1], 'max_bytes', ARGV[2],
           'taken', 0, 'taken_bytes', 0)
if first then
  redis.call('HINCRBY', KEYS[1], 'directory', 1)  -- senders reload, and note from then on
  redis.call('HSET', KEYS[3], 'logged', '0-0', 'unlogged', 0, 'unlogged_bytes', 0)
end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local state = ARGV[3] .. 'state:' .. name
  local there = redis.call('HMGET', state, 'messages', 'bytes')
  if there[1] then
    redis.call('HSET', state, 'taken', 0, 'taken_bytes', 0)
    if first then
      redis.call('HSET', state, 'logged', '0-0', 'unlogged', there[1], 'unlogged_bytes', there[2])
    end
  end
end
return epoch
