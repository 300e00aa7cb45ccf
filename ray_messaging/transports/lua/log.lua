-- Scripts that the event log calls.

-- script open_log -----------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Register the event log; earlier writers are fenced. A late call, after another writer has taken the epoch, changes
-- nothing. Allowed when memory is full, because the log's writer frees memory.
--
-- KEYS[1] meta       hash: start:run = id of the start that has the experiment, start:log = 1 while a log is registered,
--                    directory = version, start:log_epoch = epoch of the last writer
-- KEYS[2] changes    hash: its fields are the mailboxes
-- KEYS[3] log state  hash: epoch, born = 0, limits of the log stream (max_messages, max_bytes), and as a mailbox's:
--                    unlogged, unlogged_bytes, taken, taken_bytes, base, base_bytes (see note_resumed), logged, last
-- ARGV[1] max messages  [2] max bytes of the log stream  [3] prefix of this experiment's keys: state:<mailbox> is a hash
-- ARGV[4] the caller's start ("": any)  [5] the epoch that the caller found ("": none)  [6] the epoch that it takes
-- ARGV[7] is not used: see advance_interceptor_epoch
-- Returns 1; 0: the epoch is not the one that the caller found; -1: another start has the experiment
local now, epoch = redis.call('HMGET', KEYS[1], 'start:run', 'start:log_epoch'), ARGV[6]
if ARGV[4] ~= '' and now[1] ~= ARGV[4] then return -1 end
if now[2] == epoch then return 1 end
if (now[2] or '') ~= ARGV[5] then return 0 end
redis.call('HSET', KEYS[1], 'start:log_epoch', epoch)
local first = redis.call('HSETNX', KEYS[1], 'start:log', 1) == 1
-- Add the totals that the last writer reported to the sum of all earlier writers, because a writer's totals begin at 0.
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
  redis.call('HINCRBY', KEYS[1], 'directory', 1)  -- senders reload the directory, and write log notes from then on
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

-- script close_log ----------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Unregister the event log: from then on entries are kept only until their readers have committed them.
--
-- KEYS[1] meta       hash: start:log, directory = version
-- KEYS[2] changes    hash: its fields are the mailboxes
-- KEYS[3] log state  hash: epoch of the log's writer; it stays, so that the call can be repeated
-- KEYS[4] ended      set: <name>:<born> of streams of removed mailboxes, which have keys start:ended:<name>:<born>
-- KEYS[5] log        stream: emptied and not deleted, so that no entry id is used again
-- KEYS[6] hearers    hash: sets of agents that broadcasts name, by digest
-- ARGV[1] the writer's epoch  [2] prefix of this experiment's keys: mailbox:<name>:<born> is a stream, state:<mailbox> a
--         hash (born, keep = oldest entry that the reader needs, and the log's counts)
-- Returns 1, or 0 if a newer writer has the log
if redis.call('HGET', KEYS[3], 'epoch') ~= ARGV[1] then return 0 end
if redis.call('HDEL', KEYS[1], 'start:log') == 0 then return 1 end
redis.call('HINCRBY', KEYS[1], 'directory', 1)  -- senders reload the directory, and write no log notes from then on
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  local state = ARGV[2] .. 'state:' .. name
  local now = redis.call('HMGET', state, 'born', 'keep')
  if now[1] then
    redis.call('HDEL', state, 'logged', 'unlogged', 'unlogged_bytes', 'taken', 'taken_bytes', 'base', 'base_bytes')
    redis.call('XTRIM', ARGV[2] .. 'mailbox:' .. name .. ':' .. now[1], 'MINID', now[2])
  end
end
for _, stream in ipairs(redis.call('SMEMBERS', KEYS[4])) do redis.call('DEL', ARGV[2] .. 'start:ended:' .. stream) end
redis.call('DEL', KEYS[4], KEYS[6])
redis.call('XTRIM', KEYS[5], 'MAXLEN', 0)
redis.call('HDEL', KEYS[3], 'logged', 'unlogged', 'unlogged_bytes', 'taken', 'taken_bytes', 'base', 'base_bytes', 'last')
return 1

-- script list_streams -------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return the streams that the event log must read, without the log stream.
--
-- KEYS[1] changes  hash: its fields are the mailboxes
-- KEYS[2] ended    set: <name>:<born> of streams of removed mailboxes
-- ARGV[1] prefix of this experiment's keys: state:<mailbox> is a hash with born
-- Returns {{<name>:<born> of mailboxes...}, {<name>:<born> of removed mailboxes...}}
local live = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local born = redis.call('HGET', ARGV[1] .. 'state:' .. name, 'born')
  if born then live[#live + 1] = name .. ':' .. born end
end
return {live, redis.call('SMEMBERS', KEYS[2])}

-- script read_stream_ends ---------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return the id of each stream's last entry, or 0-0 if it has none. Entries that were trimmed are in the log already.
--
-- KEYS two for each stream: its key while its mailbox exists, and its key after the mailbox was removed
local ends = {}
for i, key in ipairs(KEYS) do
  local place = math.ceil(i / 2)
  local last = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  ends[place] = last and last[1] or ends[place] or '0-0'
end
return ends

-- script note_written -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Record the event log's position in streams, and trim entries that neither the log nor the reader needs. Allowed when
-- memory is full, because this frees memory.
--
-- KEYS[1] meta       hash: start:log = 1 while a log is registered
-- KEYS[2] log state  hash: epoch of the log's writer, and the fields that each state has
-- KEYS[3] ended      set: <name>:<born> of streams of removed mailboxes that the log has not read to their end; they have
--                    keys start:ended:<name>:<born>
-- ARGV[1] the writer's epoch  [2] prefix of this experiment's keys: mailbox:<name>:<born> is a stream, state:<name> a
--         hash (born, keep = oldest entry that the reader needs, logged = oldest entry that the log needs, last = id of
--         the last entry, unlogged and unlogged_bytes = messages and bytes that the log does not have yet, taken and
--         taken_bytes = messages and bytes that the writer has read under its epoch)
-- ARGV[3] number of streams, then for each: <name>:<born>, oldest entry that the log needs, messages and bytes that the
--         writer has read under this epoch; these are totals, so that a repeated call counts nothing twice
-- ARGV[...] streams of removed mailboxes that were read to their end, which are deleted
-- Returns 1, or 0 if a newer writer has the log, or no log is registered
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'start:log') == 0 then return 0 end
local arg = 4
for _ = 1, tonumber(ARGV[3]) do
  local stream, keep, taken, taken_bytes = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3])
  local name, born = stream:match('^(.*):(%d+)$')
  local of = ARGV[2] .. (name:sub(1, 1) == ':' and 'start:' or '')  -- the state of the log stream belongs to one start
  local state = of .. 'state:' .. name
  local now = redis.call('HMGET', state, 'born', 'keep', 'last', 'unlogged', 'unlogged_bytes', 'taken', 'taken_bytes')
  local oldest, key = keep, ARGV[2] .. 'start:ended:' .. stream
  if now[1] == born then
    local unlogged = tonumber(now[4] or 0) + tonumber(now[6] or 0) - taken
    local unlogged_bytes = tonumber(now[5] or 0) + tonumber(now[7] or 0) - taken_bytes
    -- If the log has the last entry, it lacks nothing, whatever the numbers say: an earlier writer may have died after it
    -- wrote a file and before it reported the messages here.
    if not now[3] or (now[3] ~= keep and lower(now[3], keep) == now[3]) then unlogged, unlogged_bytes = 0, 0 end
    redis.call('HSET', state, 'logged', keep, 'unlogged', math.max(unlogged, 0),
               'unlogged_bytes', math.max(unlogged_bytes, 0), 'taken', taken, 'taken_bytes', taken_bytes)
    key = of .. 'mailbox:' .. stream
    if now[2] then oldest = lower(keep, now[2]) end
  end
  redis.call('XTRIM', key, 'MINID', oldest)
  arg = arg + 4
end
for i = arg, #ARGV do
  if redis.call('SREM', KEYS[3], ARGV[i]) == 1 then redis.call('DEL', ARGV[2] .. 'start:ended:' .. ARGV[i]) end
end
return 1

-- script note_resumed -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Record the totals of the event log's earlier writers: a writer that died may have written more than it reported.
--
-- KEYS[1] meta       hash: start:log = 1 while a log is registered
-- KEYS[2] log state  hash: epoch of the log's writer, and the fields that each state has
-- ARGV[1] the writer's epoch  [2] prefix of this experiment's keys: state:<name> is a hash (born, unlogged and
--         unlogged_bytes = messages and bytes that the log does not have yet, base and base_bytes = the totals that
--         earlier writers reported; missing: nothing was reported, empty: unknown)
-- ARGV[3...] for each stream: <name>:<born>, messages and bytes of the stream that the log has
-- Returns 1, or 0 if a newer writer has the log, or no log is registered
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'start:log') == 0 then return 0 end
local function left(unlogged, base, taken)
  unlogged = tonumber(unlogged or 0)
  if base == '' then return unlogged end
  return math.max(0, unlogged - math.max(0, taken - tonumber(base or 0)))
end
for i = 3, #ARGV, 3 do
  local name, born = ARGV[i]:match('^(.*):(%d+)$')
  local state = ARGV[2] .. (name:sub(1, 1) == ':' and 'start:' or '') .. 'state:' .. name
  local taken, taken_bytes = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local now = redis.call('HMGET', state, 'born', 'unlogged', 'base', 'unlogged_bytes', 'base_bytes')
  if now[1] == born then
    redis.call('HSET', state, 'unlogged', left(now[2], now[3], taken), 'base', taken,
               'unlogged_bytes', left(now[4], now[5], taken_bytes), 'base_bytes', taken_bytes)
  end
end
return 1
