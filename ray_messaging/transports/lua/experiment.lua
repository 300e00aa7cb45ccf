-- Scripts about an experiment as a whole: its runs, its interceptor, its state.

-- script claim_experiment ---------------------------------------------------------------------------------------------
-- Claim an experiment for a start (run) of it. A call that comes late, after another start has it, changes nothing.
--
-- KEYS[1] meta  hash: start:run = id of the start that has the experiment, start:erasing = id of the start that must erase
--               the earlier data, start:beat: see heartbeat; format = number of the data's format, start:shards = number
--               of shards. A process with another format or number of shards is refused, see raise_entry_ids
-- ARGV[1] the start that the caller found ("": none)  [2] the caller's own start  [3] 1: the caller erases the data
-- ARGV[4] the caller's format  [5] number of shards
-- Returns 1; 2: the caller must erase the data; 0: another start has the experiment
local now = redis.call('HMGET', KEYS[1], 'start:run', 'start:erasing')
if now[1] ~= ARGV[2] then
  if (now[1] or '') ~= ARGV[1] then return 0 end
  redis.call('HSET', KEYS[1], 'start:run', ARGV[2], 'format', ARGV[4], 'start:shards', ARGV[5])
  redis.call('HDEL', KEYS[1], 'start:beat')
  -- If an earlier start began to erase the data and did not finish, this start must finish.
  if ARGV[3] == '1' or now[2] then
    redis.call('HSET', KEYS[1], 'start:erasing', ARGV[2])
    return 2
  end
end
return now[2] and 2 or 1

-- script raise_entry_ids ----------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- This is called once per connection, before any write. The first caller after a restart of the server raises the next
-- entry ids of all streams above all ids that the server assigned before the restart. Allowed when memory is full.
--
-- KEYS[1] meta     hash: see id_ceiling; start:log = 1 while an event log is registered; format and
--                  start:shards: see claim_experiment
-- KEYS[2] changes  hash: its fields are the mailboxes
-- ARGV[1] prefix of this experiment's keys: mailbox:<mailbox>:<born> is a stream, state:<mailbox> a hash (born)
-- ARGV[2] the life (the server process's run id) that the caller knew ("": none)  [3] the highest time in ms that the clock
--         of that life can show by now
-- ARGV[4...] for each stream that is read over this connection: key, last entry that was read
-- Returns {life, ms, format (0: none), shards (0: none), keys of streams whose last entry is before the last entry that
-- was read...}
local now, life = milliseconds(), life_of_server()
local meta = redis.call('HMGET', KEYS[1], 'life', 'ceiling', 'start:log', 'format', 'start:shards')
local reply = {life, now, tonumber(meta[4] or 0), tonumber(meta[5] or 0)}
if not meta[2] then return reply end  -- nobody has listened yet

-- Make a stream's next ids higher: an entry is added and deleted. The stream remembers the deleted entry's id, also if
-- the stream did not exist before.
local function raise(stream, ms)
  local id = string.format('%.0f-0', ms)
  local raised = redis.pcall('XADD', stream, id, 'f', '')
  if type(raised) == 'string' then
    redis.call('XDEL', stream, id)
  elseif not raised.err:find('equal or smaller', 1, true) then
    error(raised.err)
  end
end

if meta[1] ~= life then
  -- A caller that knew the last life knows what that life's clock would show by now. Otherwise use the ceiling, which was
  -- written ahead of time (see id_ceiling).
  local above = math.max(now, tonumber(meta[1] == ARGV[2] and ARGV[3] or meta[2]))
  for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
    local born = redis.call('HGET', ARGV[1] .. 'state:' .. name, 'born')
    if born then raise(ARGV[1] .. 'mailbox:' .. name .. ':' .. born, above) end
  end
  if meta[3] then raise(ARGV[1] .. 'start:mailbox::log:0', above) end
  redis.call('HSET', KEYS[1], 'life', life, 'ceiling', string.format('%.0f', math.max(above + 1, tonumber(meta[2]))))
end

-- If a stream still ends before the last entry that was read, the server lost more than the ceiling covers. Raise that
-- stream's ids, so that at least new entries are delivered.
for arg = 4, #ARGV, 2 do
  local facts = redis.pcall('XINFO', 'STREAM', ARGV[arg])
  for at = 1, facts.err and 0 or #facts, 2 do
    local read = ARGV[arg + 1]
    if facts[at] == 'last-generated-id' and facts[at + 1] ~= read and lower(facts[at + 1], read) ~= read then
      raise(ARGV[arg], tonumber(read:match('^%d+')) + 1)
      reply[#reply + 1] = ARGV[arg]
    end
  end
end
return reply

-- script advance_interceptor_epoch ------------------------------------------------------------------------------------
-- Set a new interceptor epoch: verdicts and rule snapshots of other interceptors are invalid from then on. A late call,
-- after another interceptor has taken the epoch, changes nothing.
--
-- KEYS[1] meta  hash: start:run = id of the start that has the experiment, start:interceptor = the epoch, start:standing =
--               number of the rule snapshot by which senders may judge without asking, start:kept = number of the last
--               write of write_rule_state under this epoch
-- ARGV[1] the caller's start ("": any)  [2] the epoch that the caller found ("": none)  [3] the epoch that the caller
--         takes, above the found epoch and snapshot number: see verdict_status  [4] the number of the rule snapshot that
--         the caller found ("": none)
-- Returns 1; 0: epoch or snapshot number are not those that the caller found; -1: another start has the experiment
local now = redis.call('HMGET', KEYS[1], 'start:run', 'start:interceptor', 'start:standing')
if ARGV[1] ~= '' and now[1] ~= ARGV[1] then return -1 end
if now[2] == ARGV[3] then return 1 end
if (now[2] or '') ~= ARGV[2] or (ARGV[4] and (now[3] or '') ~= ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], 'start:interceptor', ARGV[3])
redis.call('HDEL', KEYS[1], 'start:standing', 'start:kept')
return 1

-- script advance_delegation -------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Set the number of the valid rule snapshot, by which senders judge without asking, unless a higher number is set: a late
-- call must not make an outdated snapshot valid again. Allowed when memory is full, because snapshots must end in time.
--
-- KEYS[1] meta  hash: start:interceptor = epoch of the interceptor that may write, start:standing = the number
-- ARGV[1] the caller's epoch  [2] the number; each change of the rules has a higher number
-- Returns 1, or 0 if another interceptor has taken over
local now = redis.call('HMGET', KEYS[1], 'start:interceptor', 'start:standing')
if (now[1] or '0') ~= ARGV[1] then return 0 end
-- Numbers are compared as texts, because doubles are not exact for numbers of this size.
local before = now[2] or ''
if #before < #ARGV[2] or (#before == #ARGV[2] and before < ARGV[2]) then
  redis.call('HSET', KEYS[1], 'start:standing', ARGV[2])
end
return 1

-- script heartbeat ----------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Add 1 to the number of an interceptor's heartbeats, or delete this number, because the interceptor ends. Return what the
-- server knows of the interceptor.
--
-- KEYS[1] meta  hash: start:run = id of the start that has the experiment, start:interceptor = epoch of the interceptor
--               that may write, start:kept = number of its last write, start:beat = number of its heartbeats (none: it was
--               closed)
-- ARGV[1] the caller's start  [2] the caller's epoch  [3] 1: the caller lives, 0: it ends
-- Returns {start:run, start:interceptor, start:kept}
local now = redis.call('HMGET', KEYS[1], 'start:run', 'start:interceptor', 'start:kept')
if now[1] == ARGV[1] and now[2] == ARGV[2] then
  if ARGV[3] == '1' then redis.call('HINCRBY', KEYS[1], 'start:beat', 1) else redis.call('HDEL', KEYS[1], 'start:beat') end
end
return now

-- script write_rule_state ---------------------------------------------------------------------------------------------
-- Write the tables of rules, and the answers that depend on them. Writes are numbered: a repeated or late write changes
-- nothing, and a server that has lost a write reports it.
--
-- KEYS[1] meta     hash: start:interceptor = epoch of the interceptor that may write, start:kept = number of its last write
-- KEYS[2] answers  hash: name of a batch or message -> its verdicts
-- KEYS[3] rules    list: the name under which Ray keeps the rules in force, then their own names, in order
-- KEYS[4...]       per table: the hash (JSON key -> JSON value), and the hash that takes its place
-- ARGV[1] epoch  [2] number of this write  [3] number of the last write that the server has confirmed to the caller
-- ARGV[4] 1: this write has the whole state, so all other answers are deleted
-- ARGV[5] number of answers, then name and verdicts of each; number of answers to forget, then their names;
--         number of names for the list (-1: as it was), then these;
--         per table: 1 if it is replaced; number of fields, then field and value of each; number of fields to delete,
--         then the fields
-- Returns 1; 0: another interceptor has taken over; -1: the server has lost a write that it had confirmed
local now = redis.call('HMGET', KEYS[1], 'start:interceptor', 'start:kept')
local kept = tonumber(now[2] or 0)
if (now[1] or '0') ~= ARGV[1] then return 0 end
if kept < tonumber(ARGV[3]) then return -1 end
if kept >= tonumber(ARGV[2]) then
  for key = 5, #KEYS, 2 do redis.call('DEL', KEYS[key]) end
  return 1
end
if ARGV[4] == '1' then redis.call('DEL', KEYS[2]) end

local at = 5
local function chunk(count, width, command, key)
  local last = at + count * width
  at = at + 1
  while at <= last do
    local to = math.min(last, at + 999)
    redis.call(command, key, unpack(ARGV, at, to))
    at = to + 1
  end
end

chunk(tonumber(ARGV[at]), 2, 'HSET', KEYS[2])
chunk(tonumber(ARGV[at]), 1, 'HDEL', KEYS[2])
local names = tonumber(ARGV[at])
if names >= 0 then
  redis.call('DEL', KEYS[3])
  chunk(names, 1, 'RPUSH', KEYS[3])
else
  at = at + 1
end
for key = 4, #KEYS, 2 do
  at = at + 1
  if ARGV[at - 1] == '1' then
    redis.call('DEL', KEYS[key])
    if redis.call('EXISTS', KEYS[key + 1]) == 1 then redis.call('RENAME', KEYS[key + 1], KEYS[key]) end
  end
  chunk(tonumber(ARGV[at]), 2, 'HSET', KEYS[key])
  chunk(tonumber(ARGV[at]), 1, 'HDEL', KEYS[key])
end
redis.call('HSET', KEYS[1], 'start:kept', ARGV[2])
return 1

-- script read_health --------------------------------------------------------------------------------------------------
#!lua flags=no-writes,allow-stale
-- Return the state of an experiment and its mailboxes. Writes nothing.
--
-- KEYS[1] meta     hash: start:interceptor = epoch, start:log = 1 while an event log is registered
-- KEYS[2] changes  hash: its fields are the mailboxes
-- KEYS[3] dead     stream of dead letters
-- ARGV[1] prefix of this experiment's keys: state:<mailbox> is a hash (see take_mailbox), start:lease:<mailbox> a string (see
--         renew_lease), step:<mailbox> a hash (see step_barrier), mailbox:<mailbox>:<born> a stream, start:state::log the log stream's state, start:state::dead the dead letters'
-- ARGV[2] most mailboxes  [3] most bytes of frames that are read, because an entry's age cannot be read without its frame
-- Returns {interceptor's epoch, log, dead letters, dead letters dropped at the limit, of the log stream: unlogged,
-- unlogged_bytes, max_messages, max_bytes; number of all mailboxes, then for each mailbox: name, messages, bytes,
-- max_messages, max_bytes, entry of the oldest unread message or "", ms until its lease ends by the server's clock (below
-- 0: the lease has ended, or there is none), leased, unlogged, unlogged_bytes, 1 if it alone listens for its agents, owner,
-- messages that are acknowledged although an earlier message is not, the group's first step or "", the note on its service
-- or "" (see set_service), messages whose handlers failed}
local meta = redis.call('HMGET', KEYS[1], 'start:interceptor', 'start:log')
local log = redis.call('HMGET', ARGV[1] .. 'start:state::log', 'unlogged', 'unlogged_bytes', 'max_messages', 'max_bytes')
-- Other clients may write anything into this field, so it is checked below.
local dropped = redis.call('HGET', ARGV[1] .. 'start:state::dead', 'dropped') or ''
local names = redis.call('HKEYS', KEYS[2])
local reply = {meta[1] or 0, meta[2] or 0, redis.call('XLEN', KEYS[3]),
               #dropped < 20 and dropped:find('^%d+$') and dropped or 0, log[1] or 0,
               log[2] or 0, log[3] or 0, log[4] or 0, #names}
local looked, clock = 0, redis.call('TIME')
for i = 1, math.min(#names, tonumber(ARGV[2])) do
  local name = names[i]
  local now = redis.call('HMGET', ARGV[1] .. 'state:' .. name, 'messages', 'bytes', 'max_messages', 'max_bytes', 'born',
                         'entry', 'row', 'leased', 'unlogged', 'unlogged_bytes', 'exclusive', 'owner', 'acked_messages',
                         'service', 'failures', 'epoch', 'served')
  local oldest = ''
  -- Look into the stream even if `messages` is 0, because entries that other clients wrote are not counted.
  if now[5] and looked < tonumber(ARGV[3]) then
    local from = now[6] or '0-0'
    if (now[7] or '0') == '0' then from = '(' .. from end
    local entry = redis.call('XRANGE', ARGV[1] .. 'mailbox:' .. name .. ':' .. now[5], from, '+', 'COUNT', 1)[1]
    if entry then
      oldest = entry[1]
      for _, part in ipairs(entry[2]) do looked = looked + #part end
    end
  end
  local left = -2
  for lasts, renewed in (redis.call('GET', ARGV[1] .. 'start:lease:' .. name) or ''):gmatch(':(%d+):(%d+)$') do
    left = renewed + lasts - clock[1] * 1000 - math.floor(clock[2] / 1000)
  end
  for _, value in ipairs({name, now[1] or 0, now[2] or 0, now[3] or 0, now[4] or 0, oldest, left, now[8] or 0,
                          now[9] or 0, now[10] or 0, now[11] or 0, now[12] or '', now[13] or 0,
                          redis.call('HGET', ARGV[1] .. 'step:' .. name, 'since') or '',
                          now[16] == now[17] and now[14] or '', now[15] or 0}) do
    reply[#reply + 1] = value
  end
end
return reply

-- script scan_keys ----------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return a page of an experiment's keys. Unlike this script, a plain SCAN would also answer on a node from which the
-- cluster has moved the keys away, and would find none.
--
-- KEYS[1] meta  any key of the experiment
-- ARGV[1] cursor of this server, 0 at first  [2] pattern  [3] about how many keys are looked at
-- Returns {run id of the server, next cursor, 0 at the end, keys}
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
return {redis.call('INFO', 'server'):match('run_id:(%w+)') or '', page[1], page[2]}

-- script write_mark ---------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Write a mark, so that a following WAIT covers all earlier writes. Allowed when memory is full, because calls that free
-- memory are also followed by WAIT.
redis.call('SET', KEYS[1], 1, 'PX', 60000)
