-- Mailboxes: their records in the directory, their readers' cursors and leases; also schemas and audiences.

-- script take_mailbox -------------------------------------------------------------------------------------------------
-- Enter a mailbox's record in the directory and take the mailbox.
--
-- KEYS[1] meta  hash: directory, start:log, born = the number that the newest mailbox got (see KEYS[4]), wide = 1 if some
--         messager has subscribed, or may subscribe, to all agents' channels by one pattern, life, ceiling: see id_ceiling,
--         format, start:shards: see claim_experiment  [2] records  [3] changes: as in load_directory
-- KEYS[4] state  hash: epoch, born (a number that distinguishes the mailbox from earlier mailboxes of its name: its stream
--         is mailbox:<name>:<born>), since = ms when it was created, entry and row of the cursor, keep, messages, bytes,
--         max_messages, max_bytes, leased, owner, exclusive, reader = the caller that took it last, blob = the state that
--         the last transaction left, acked: see move_cursor; while an event log is registered: logged, unlogged,
--         unlogged_bytes, taken, taken_bytes (see note_written)
-- KEYS[5] lease  string: the owner's messager lives, see renew_lease
-- KEYS[6] log    stream: an entry (m = mailbox:born) wakes the log's writer
-- KEYS[7] step:<group>  hash: its group has joined the steps  [8] steps: see step_barrier
-- ARGV[1] directory version the record was checked against  [2] mailbox  [3] record  [4] the reader's epoch or -1
-- ARGV[5] max messages  [6] max bytes  [7] lease in ms  [8] leased 1/0  [9] owner
-- ARGV[10] 1: only take over a mailbox that exists and has the same record  [11] 1: it alone listens for its agents, else 0
-- ARGV[12] the caller, which keeps its epoch if it was the last to take the mailbox  [13] 1: the caller may subscribe to
--          all agents' channels by one pattern
-- ARGV[14] a lease of another owner that has ended, as the caller has seen it, or ""  [15] the caller's format
-- ARGV[16] number of shards
-- Returns {0, version, epoch, entry, row, born, and if it was taken over blob, acked}; {1} the version is stale; {2} fenced;
-- {3, owner, lease, 1 if by the server's clock the lease may have ended} another owner has it; {4} the mailbox does not
-- exist, or has another record; {5} the server has lost the mailbox, or a reader's epoch
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
  if redis.call('HEXISTS', KEYS[1], 'start:log') == 1 then
    redis.call('HSET', KEYS[4], 'logged', '0-0', 'unlogged', 0, 'unlogged_bytes', 0, 'taken', 0, 'taken_bytes', 0)
    redis.call('XADD', KEYS[6], '*', 'm', ARGV[2] .. ':' .. born)
  end
end
local epoch, left = ARGV[4], {false, false}
if epoch == '-1' then
  epoch = state[1]
  -- A call that the caller repeated over a new connection may arrive after its repetition. It must not fence the caller.
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
redis.call('HSET', KEYS[1], 'start:shards', ARGV[16])
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

-- script take_over_mailbox --------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Take a mailbox over; the text of take_mailbox comes before this section. Allowed when memory is full, because a take-over
-- changes only a few numbers, and the mailbox's reader then frees memory.

-- script commit -------------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Commit without sending: a fetch's commit, or a transaction without messages. Allowed when memory is full, because this
-- frees memory.
--
-- KEYS[1] state   hash: epoch, born, entry, row, keep = oldest entry that the reader needs, messages, bytes, handled and
--                 handled_bytes (under this epoch), logged = oldest entry that the event log needs (none: no log),
--                 acked, acked_messages = ranges that are acknowledged behind the cursor (see move_cursor; missing: none),
--                 blob = the state that the last transaction left
-- KEYS[2] sender  hash: see send; only for a transaction
-- ARGV[1...11]    see conclude; without a transaction the last ones may be left out
-- ARGV[12] the sender's epoch  [13] number of the transaction
-- Returns 0, or the reason for a refusal: see SendStatus
if KEYS[2] then
  local sender, number = redis.call('HMGET', KEYS[2], 'epoch', 'transactions'), tonumber(ARGV[13])
  local status = refuse(sender[1], ARGV[12], 3, sender[1] and 8 or 7)
  if status ~= 0 then return status end
  local committed = tonumber(sender[2] or 0)
  if number > committed + 1 then return 6 end
  if number <= committed then return 0 end  -- an earlier attempt has committed this transaction
end
local state = reader(KEYS[1])
local status = refuse(state[1], ARGV[1], 5, 11)
if status ~= 0 then return status end
if KEYS[2] then redis.call('HSET', KEYS[2], 'transactions', ARGV[13]) end
conclude(KEYS[1], state, 1)
return 0

-- script load_directory -----------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Return what changed in the directory since a version. Before that, remove mailboxes whose lease has expired, and
-- mailboxes whose state is gone although they outlive their lease: nobody can write to them.
--
-- KEYS[1] meta     hash: directory = version, start:log = 1 while an event log is registered, schemas: see set_schema,
--                  audiences: see set_audience, hosts: see date_change
-- KEYS[2] records  hash: mailbox -> record (msgpack)
-- KEYS[3] changes  hash: mailbox -> version of its last change
-- KEYS[4] dead     stream: frames nobody will read, see dead_letter_retention
-- ARGV[1] version  [2] prefix of this experiment's keys (see dead_letter_retention for mailboxes that are removed)
-- ARGV[3] bytes of dead letters that are kept
-- Returns {version, {mailboxes...}, {records changed since...}, log, schemas, audiences, hosts}
local all, names, changed = redis.call('HGETALL', KEYS[3]), {}, {}
for i = 1, #all, 2 do
  local name = all[i]
  local state = ARGV[2] .. 'state:' .. name
  local leased = redis.call('HGET', state, 'leased')
  if leased ~= '0' and redis.call('EXISTS', ARGV[2] .. 'start:lease:' .. name) == 0 then
    bury(KEYS, ARGV[2], name, 'the lease of its messager has expired', ARGV[3])
  else
    names[#names + 1] = name
    if tonumber(all[i + 1]) > tonumber(ARGV[1]) then changed[#changed + 1] = redis.call('HGET', KEYS[2], name) end
  end
end
local meta = redis.call('HMGET', KEYS[1], 'directory', 'start:log', 'schemas', 'audiences', 'hosts')
return {tonumber(meta[1] or 0), names, changed, meta[2] and 1 or 0, meta[3] or '{}', meta[4] or '{}', meta[5] or ''}

-- script renew_leases -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Renew a messager's leases.
--
-- KEYS[1] sender  hash: it expires some time after its messager has gone; the hash of a named messager never expires
-- KEYS[2] meta    hash: see id_ceiling
-- KEYS[3] state   hash: epoch   KEYS[4] lease: see renew_lease   both only if the messager reads a mailbox
-- ARGV[1] ms until the sender's hash expires, or 0: never  [2] the reader's epoch  [3] lease in ms; 0: the lease ends now
-- Returns the time in ms; 0: the mailbox was removed; -1: a newer reader has it; -2: the server has the mailbox's data from
-- before the reader took its epoch
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if #KEYS == 2 then return milliseconds() end
local epoch = redis.call('HGET', KEYS[3], 'epoch')
if not epoch then return 0 end
if epoch ~= ARGV[2] then return tonumber(epoch) > tonumber(ARGV[2]) and -1 or -2 end
local now = lift_ceiling(KEYS[2], tonumber(ARGV[3]))
if ARGV[3] == '0' then redis.call('DEL', KEYS[4]) else renew_lease(KEYS[4], ARGV[3], now) end
return now

-- script read_leases --------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return the current leases of the given mailboxes, and of some other mailboxes chosen at random.
--
-- KEYS[1] changes  hash: its fields are the mailboxes
-- ARGV[1] prefix of this experiment's keys: start:lease:<mailbox> is a string, see renew_lease  [2] how many others
-- ARGV[3...] mailboxes
-- Returns {mailbox, lease...} for each of these mailboxes that has a lease
local names, leases = redis.call('HRANDFIELD', KEYS[1], ARGV[2]), {}
for arg = 3, #ARGV do names[#names + 1] = ARGV[arg] end
for _, name in ipairs(names) do
  local lease = redis.call('GET', ARGV[1] .. 'start:lease:' .. name)
  if lease then leases[#leases + 1], leases[#leases + 2] = name, lease end
end
return leases

-- script end_leases ---------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- End leases that an observer has seen unchanged for their whole duration. A leased mailbox is removed with its lease,
-- unless its messager is still connected: then the messager's process is only busy or stopped, and keeps its mailbox.
--
-- KEYS as in load_directory
-- ARGV[1] prefix of this experiment's keys: start:lease:<mailbox> is a string (see renew_lease), state:<mailbox> a hash (leased)
-- ARGV[2] bytes of dead letters that are kept
-- ARGV[3...] for each: mailbox, its lease as the observer has seen it
-- Returns how many leases were ended
local ended = 0
for arg = 3, #ARGV, 2 do
  local name = ARGV[arg]
  local lease = ARGV[1] .. 'start:lease:' .. name
  if redis.call('GET', lease) == ARGV[arg + 1] then
    local leased = redis.call('HGET', ARGV[1] .. 'state:' .. name, 'leased') == '1'
    local connected = leased and redis.pcall('PUBLISH', ARGV[1] .. 'own@DB:ear:' .. name, '') or 0
    if not leased then
      redis.call('DEL', lease)
      ended = ended + 1
    elseif connected == 0 or type(connected) == 'table' then
      bury(KEYS, ARGV[1], name, 'the lease of its messager has expired', ARGV[2])
      ended = ended + 1
    end
  end
end
return ended

-- script remove_mailbox -----------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Remove a mailbox; its unread frames become dead letters.
--
-- KEYS as in load_directory; KEYS[5] state: hash: epoch
-- ARGV[1] the reader's epoch, or -1 for any reader  [2] prefix of this experiment's keys  [3] mailbox  [4] reason
-- ARGV[5] bytes of dead letters that are kept
-- Returns the number of frames that became dead letters, or -1 if a newer reader has the mailbox
local epoch = redis.call('HGET', KEYS[5], 'epoch')
if ARGV[1] ~= '-1' and epoch and epoch ~= ARGV[1] then return -1 end
return bury(KEYS, ARGV[2], ARGV[3], ARGV[4], ARGV[5])

-- script set_service --------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Keep a note on the service of a mailbox. Allowed when memory is full, because the note tells askers that a service has
-- ended.
--
-- KEYS[1] state  hash of the mailbox: epoch of its reader, service = the note (see wire/notes.py), served = epoch of the
--                reader that wrote the note; the note is invalid when another reader has the mailbox
-- ARGV[1] the reader's epoch  [2] note, or '' to remove the note
-- Returns 1, or 0 if another reader has the mailbox, or the mailbox is gone
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], 'service', 'served')
else redis.call('HSET', KEYS[1], 'service', ARGV[2], 'served', ARGV[1]) end
return 1

-- script read_services ------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return the notes on the services of some mailboxes.
--
-- KEYS[1] meta  any key of the experiment, by which a cluster finds the node
-- ARGV[1] prefix of this experiment's keys: state:<mailbox> is a hash, see set_service  [2...] mailboxes
-- Returns {mailbox, note...} for each mailbox whose current reader has written a note
local found = {}
for arg = 2, #ARGV do
  local now = redis.call('HMGET', ARGV[1] .. 'state:' .. ARGV[arg], 'epoch', 'service', 'served')
  if now[2] and now[1] == now[3] then found[#found + 1], found[#found + 2] = ARGV[arg], now[2] end
end
return found

-- script set_schema ---------------------------------------------------------------------------------------------------
-- Set or remove the schema of a subtopic's payloads. Senders reload the directory before they send further messages.
--
-- KEYS[1] meta  hash: schemas = JSON object of subtopics and their schemas, directory = version
-- ARGV[1] subtopic  [2] JSON Schema, or "" for none
-- Returns 1; 0: nothing has changed
local all = cjson.decode(redis.call('HGET', KEYS[1], 'schemas') or '{}')
if (all[ARGV[1]] or '') == ARGV[2] then return 0 end
all[ARGV[1]] = ARGV[2] ~= '' and ARGV[2] or nil
if next(all) then
  redis.call('HSET', KEYS[1], 'schemas', cjson.encode(all))
else
  redis.call('HDEL', KEYS[1], 'schemas')
end
redis.call('HINCRBY', KEYS[1], 'directory', 1)
return 1

-- script set_audience -------------------------------------------------------------------------------------------------
-- Add a version to an audience, or remove the audience. Senders reload the directory before they send further messages.
--
-- KEYS[1] meta  hash: audiences = JSON object: for each name the versions that some open step may use, each as [number,
--               first step in which it is used, facts (JSON; "": removed)]; directory = version
-- KEYS[2] steps: see step_barrier
-- ARGV[1] name  [2] number of the new version: the last number + 1  [3] facts, or "" to remove the audience
-- ARGV[4] first step in which the version is used, or "": the first step that no group has opened
-- Returns {1, first step in which it is used}; {0, number of the last version}, if that is not the number before the new one
local all = cjson.decode(redis.call('HGET', KEYS[1], 'audiences') or '{}')
local versions, steps = all[ARGV[1]] or {}, redis.call('HMGET', KEYS[2], 'latest', 'sealed')
local last, number = versions[#versions], tonumber(ARGV[2])
if last and last[1] == number and last[3] == ARGV[3] then return {1, last[2]} end
if number ~= (last and last[1] or 0) + 1 then return {0, last and last[1] or 0} end
local since, sealed, kept = tonumber(ARGV[4]) or tonumber(steps[1] or -1) + 1, tonumber(steps[2] or -1), {}
versions[#versions + 1] = {number, since, ARGV[3]}
for i, each in ipairs(versions) do
  local after = versions[i + 1]
  if not after or after[2] > sealed + 1 then kept[#kept + 1] = each end
end
all[ARGV[1]] = kept
redis.call('HSET', KEYS[1], 'audiences', cjson.encode(all))
redis.call('HINCRBY', KEYS[1], 'directory', 1)
return {1, since}
