#!lua flags=allow-oom
-- Register the event log; earlier writers are fenced. A late attempt, after another writer has the epoch, changes
-- nothing. Allowed when memory is full: a writer that comes back frees some.
--
-- KEYS[1] meta       hash: run = the start of the experiment that has it, log = 1 while a log is registered,
--                    directory = version, log_epoch = the last writer's
-- KEYS[2] changes    hash: its fields are the mailboxes
-- KEYS[3] log state  hash: epoch, born = 0, limits of the log stream (max_messages, max_bytes), and as a mailbox's:
--                    unlogged, unlogged_bytes, taken, taken_bytes, base, base_bytes (see note_resumed.lua), logged, last
-- ARGV[1] max messages  [2] max bytes of the log stream  [3] prefix of this experiment's keys: state:<mailbox> is a hash
-- ARGV[4] the caller's run ("": any)  [5] the epoch that the caller found ("": none)  [6] the epoch that it takes
-- Returns 1; 0: there is another epoch than it found; -1: another run has the experiment
local now, epoch = redis.call('HMGET', KEYS[1], 'run', 'log_epoch'), ARGV[6]
if ARGV[4] ~= '' and now[1] ~= ARGV[4] then return -1 end
if now[2] == epoch then return 1 end
if (now[2] or '') ~= ARGV[5] then return 0 end
redis.call('HSET', KEYS[1], 'log_epoch', epoch)
local first = redis.call('HSETNX', KEYS[1], 'log', 1) == 1
-- What the last writer told goes to what all earlier ones told: totals begin anew with each.
local function begin(state)
  local now = redis.call('HMGET', state, 'base', 'taken', 'base_bytes', 'taken_bytes')
  local base, base_bytes = '', ''
  if not first and now[1] ~= '' then
    base, base_bytes = (now[1] or 0) + (now[2] or 0), (now[3] or 0) + (now[4] or 0)
  end
  redis.call('HSET', state, 'base', base, 'base_bytes', base_bytes, 'taken', 0, 'taken_bytes', 0)
end
redis.call('HSET', KEYS[3], 'epoch', epoch, 'born', 0, 'max_messages', ARGV[1], 'max_bytes', ARGV[2])
begin(KEYS[3])
if first then
  redis.call('HINCRBY', KEYS[1], 'directory', 1)  -- senders reload, and note from then on
  redis.call('HSET', KEYS[3], 'logged', '0-0', 'unlogged', 0, 'unlogged_bytes', 0)
end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local state = ARGV[3] .. 'state:' .. name
  local there = redis.call('HMGET', state, 'messages', 'bytes')
  if there[1] then
    begin(state)
    if first then
      redis.call('HSET', state, 'logged', '0-0', 'unlogged', there[1], 'unlogged_bytes', there[2])
    end
  end
end
return 1
