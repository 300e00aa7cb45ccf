-- Sections that several files share. Each file here consists of sections. A `script` section is a script of this name. A
-- `shared` section is put before the scripts for which `transports/connection/scripts.py` lists it.
--
-- The names of keys, and of fields in hashes, decide what a checkpoint contains. A name that begins with `start:` belongs
-- to one start of the experiment, and is in no checkpoint. A key box...@<step> belongs to the boxes for that step. All
-- other keys and fields belong to the experiment as a whole. See checkpoints.py.

-- shared refuse_while_moving ------------------------------------------------------------------------------------------
-- The beginning of every script on a cluster: refuse while the cluster moves the experiment's slot, key by key, to another
-- node. Without this check, a script would fail at the first key that has moved, and its earlier writes would stay. During
-- the move no node answers for a key that does not exist, so one question about an absent key is enough.
--
-- KEYS[1] any key of the experiment, for its prefix
do
  local absent = redis.pcall('EXISTS', KEYS[1]:match('^rm:{[^}]*}:') .. 'absent')
  if type(absent) == 'table' then
    if not absent.err:find('non local key', 1, true) then return absent end
    return redis.error_reply('TRYAGAIN the slot of this experiment is being moved to another node')
  end
end

-- shared channel_here -------------------------------------------------------------------------------------------------
-- Return a channel's name on the server. Pub/Sub ignores the db, so in a db other than 0 the names of an experiment's
-- channels, brackets and ears contain the db. @DB is replaced before the script is sent.
local function channel_here(prefix, channel)
  if '@DB' == '' then return channel end
  local ours = 'exps:' .. prefix:sub(5, -3) .. ':'
  return channel:sub(1, #ours) == ours and ours:sub(1, -2) .. '@DB:' .. channel:sub(#ours + 1) or channel
end

-- shared entry_order --------------------------------------------------------------------------------------------------
-- Return the lower of two entry ids. Ids cannot be compared as text.
local function lower(a, b)
  local a_ms, a_n = a:match('^(%d+)-(%d+)$')
  local b_ms, b_n = b:match('^(%d+)-(%d+)$')
  a_ms, a_n, b_ms, b_n = tonumber(a_ms), tonumber(a_n), tonumber(b_ms), tonumber(b_n)
  if a_ms < b_ms or (a_ms == b_ms and a_n < b_n) then return a end
  return b
end

-- shared raise_number -------------------------------------------------------------------------------------------------
-- Raise a number in a field above all earlier numbers of the field. The number is at least the time in ms, so it is also
-- above numbers that were assigned before the server lost its data.
local function raise_number(key, field, above)
  local now, last = redis.call('TIME'), tonumber(redis.call('HGET', key, field) or 0)
  local number = math.max(last + 1, (above or 0) + 1, now[1] * 1000 + math.floor(now[2] / 1000))
  local text = string.format('%.0f', number)
  redis.call('HSET', key, field, text)
  return text
end

-- shared id_ceiling ---------------------------------------------------------------------------------------------------
-- Make sure that entry ids rise even if a server restarts without its last writes and with a clock that is behind. Ids
-- come from the server's clock, and a reader that has read an entry skips all entries with lower ids.
--
-- meta  hash: life = run id of the server process that wrote `ceiling` last, ceiling = a time in ms above all ids that are
--       assigned until then. It is written ahead by the duration of a lease, so that a loss of the last writes does not
--       lose it
local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local function life_of_server()
  return redis.call('INFO', 'server'):match('run_id:(%w+)') or ''
end

local function lift_ceiling(meta, lease_ms)
  local now, had = milliseconds(), redis.call('HMGET', meta, 'life', 'ceiling')
  if not had[1] then redis.call('HSET', meta, 'life', life_of_server()) end
  if now + lease_ms > tonumber(had[2] or 0) then
    redis.call('HSET', meta, 'ceiling', string.format('%.0f', now + lease_ms))
  end
  return now
end

-- shared renew_lease --------------------------------------------------------------------------------------------------
-- A lease is the text <beat>:<duration in ms>:<ms when it was renewed>, and does not expire by itself. Its messager
-- raises the beat. An observer ends the lease when it has seen the same beat for the whole duration, by the observer's own
-- clock, because the server's clock may jump: see end_leases. The time in the lease is for people, and for a quick check
-- whether the lease may have ended.
local function renew_lease(lease, lease_ms, now)
  local last = redis.call('GET', lease)
  local beat = (tonumber(last and last:match('^(%d+):')) or 0) + 1
  redis.call('SET', lease, string.format('%.0f:%s:%.0f', beat, lease_ms, now))
end

-- shared date_change --------------------------------------------------------------------------------------------------
-- A version of the directory that has moved agents to other mailboxes is used from the first step that no group has opened.
-- Record this step, and return it.
--
-- meta  hash: hosts = ascending list of <step>:<version>, with commas. The changes from this version, up to the next
--       version in the list, take effect in this step. Old items are removed when no message that was sent by them can
--       still be in a box.
local function date_change(meta, steps, version)
  local now, kept = redis.call('HMGET', steps, 'latest', 'sealed', 'horizon'), {}
  local since, oldest, last = tonumber(now[1]) + 1, tonumber(now[2]) - tonumber(now[3]), -1
  for step, first in (redis.call('HGET', meta, 'hosts') or ''):gmatch('(%d+):(%d+)') do
    last = tonumber(step)
    if last > oldest then kept[#kept + 1] = step .. ':' .. first end
  end
  if last ~= since then kept[#kept + 1] = string.format('%.0f:%.0f', since, version) end
  redis.call('HSET', meta, 'hosts', table.concat(kept, ','))
  return since
end

-- shared mailbox_limit ------------------------------------------------------------------------------------------------
-- The limits of a mailbox.
--
-- `size` is the frame's size. The other numbers are those that the mailbox would have with the frame in it; `unlogged` and
-- `unlogged_bytes` are 0 while no event log is registered.
-- Returns 0: the frame fits; 5: it is larger than the mailbox; 2: the mailbox is full; 6: the event log is behind
local function limit_fate(size, max_rows, max_bytes, messages, bytes, unlogged, unlogged_bytes)
  if size > max_bytes then return 5 end
  if messages > max_rows or bytes > max_bytes then return 2 end
  if unlogged > max_rows or unlogged_bytes > max_bytes then return 6 end
  return 0
end

-- Write the numbers of messages and bytes of a mailbox to its hash, and the id of its last entry.
local function store(state, box, last)
  if box.logged then
    redis.call('HSET', state, 'messages', box.messages, 'bytes', box.bytes, 'last', last, 'unlogged', box.unlogged,
               'unlogged_bytes', box.unlogged_bytes)
  else
    redis.call('HSET', state, 'messages', box.messages, 'bytes', box.bytes, 'last', last)
  end
end

-- shared mailbox_counts -----------------------------------------------------------------------------------------------
-- Numbers of messages and bytes in mailboxes that take frames. Section mailbox_limit comes before this one.

-- Return a mailbox's numbers of messages and bytes, and its limits, or nil if the mailbox is gone. If `lease` is nil, the
-- mailbox is the caller's own, and its lease is not checked.
local function counts_of(state, lease, prefix, name)
  local now = redis.call('HMGET', state, 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'last', 'held', 'stepped')
  if not now[3] or (lease and now[5] == '1' and redis.call('EXISTS', lease) == 0) then return nil end
  return {state = state, stream = prefix .. 'mailbox:' .. name .. ':' .. now[6], last = now[10] or '0-0', logged = now[7],
          messages = tonumber(now[1]), bytes = tonumber(now[2]), max_rows = tonumber(now[3]), max_bytes = tonumber(now[4]),
          unlogged = tonumber(now[8] or 0), unlogged_bytes = tonumber(now[9] or 0), held = now[11] and tonumber(now[11]),
          stepped = now[12]}
end

local function count(box, rows, size)
  box.messages, box.bytes = box.messages + rows, box.bytes + size
  if box.logged then box.unlogged, box.unlogged_bytes = box.unlogged + rows, box.unlogged_bytes + size end
end

-- Add a frame to the numbers of its mailbox. Return nil if the mailbox takes it, else the reason why not: 4 the frame
-- exceeds the limit even of the empty mailbox, 3 the mailbox is full, 5 the event log is behind.
local function refusal(box, rows, size)
  count(box, rows, size)
  local fate = limit_fate(size, box.max_rows, box.max_bytes, box.messages, box.bytes, box.logged and box.unlogged or 0,
                          box.logged and box.unlogged_bytes or 0)
  return ({[5] = 4, [2] = 3, [6] = 5})[fate]
end

-- shared move_cursor --------------------------------------------------------------------------------------------------
-- Move a mailbox's cursor, and delete the entries that neither the reader nor a registered event log needs. `keep` is the
-- oldest entry that the reader needs. `handled` and `handled_bytes` are totals under the reader's epoch, so that a repeated
-- commit counts nothing twice. A late commit, after a later commit over another connection, changes nothing. `acked` has
-- the ranges that are acknowledged although an earlier message is not: <entry> <row> <entry> <row> <messages>;..., each
-- from after the first cursor up to the second.

-- Return a reader's fields: epoch, born, logged, entry, row, messages, bytes, handled, handled_bytes, last. One command
-- reads all of them, because each fetch calls this.
local function reader(key)
  return redis.call('HMGET', key, 'epoch', 'born', 'logged', 'entry', 'row', 'messages', 'bytes', 'handled',
                    'handled_bytes', 'last')
end

-- Return how many messages and bytes wait after a cursor. At the end of the mailbox there are none, whatever the numbers
-- in its hash say: a reader cannot count the messages of a frame that it cannot decode.
local function behind(state, entry, row, handled, handled_bytes)
  if tonumber(row) == 0 and (not state[10] or lower(entry, state[10]) == state[10]) then return 0, 0 end
  return tonumber(state[6] or 0) + tonumber(state[8] or 0) - tonumber(handled),
         tonumber(state[7] or 0) + tonumber(state[9] or 0) - tonumber(handled_bytes)
end

-- Return whether a cursor is before another cursor. Row 0 means that the whole entry was handled.
local function earlier(entry, row, other, other_row)
  if entry ~= other then return lower(entry, other) == entry end
  return row ~= 0 and (other_row == 0 or row < other_row)
end

local function move(key, state, stream, entry, row, keep, handled, handled_bytes, acked, acked_messages)
  if state[4] and earlier(entry, tonumber(row), state[4], tonumber(state[5] or 0)) then return end
  if acked then
    -- The number of acknowledged messages only grows. So a commit with a smaller number comes late.
    local known = redis.call('HGET', key, 'acked_messages') or 0
    if handled + acked_messages < (state[8] or 0) + known then return end
    if acked == '' then redis.call('HDEL', key, 'acked', 'acked_messages')
    else redis.call('HSET', key, 'acked', acked, 'acked_messages', acked_messages) end
  end
  local messages, bytes = behind(state, entry, row, handled, handled_bytes)
  redis.call('HSET', key, 'entry', entry, 'row', row, 'keep', keep, 'handled', handled, 'handled_bytes', handled_bytes,
             'messages', messages, 'bytes', bytes)
  redis.call('XTRIM', stream .. ':' .. state[2], 'MINID', state[3] and lower(keep, state[3]) or keep)
end

-- shared conclude -----------------------------------------------------------------------------------------------------
-- The conclusion of a commit or a transaction: it moves the mailbox's cursor, and replaces the mailbox's blob, which is the
-- state that a transaction leaves for the next one. A fetch's commit is a conclusion only. A transaction also sends, and
-- its sender numbers it, so that a repeated call does nothing. Needs move_cursor. A conclusion has eleven arguments, from
-- ARGV[at] on:
--   the reader's epoch; the key of its stream without :<born>; entry ("": the cursor stays); row; oldest entry to keep;
--   messages and bytes handled under this epoch, as totals; the ranges that are acknowledged behind the cursor ("": none;
--   = or left out: they stay), and how many messages they have; + : the blob is replaced, - : it is deleted; the new blob

-- Return 0 if `given` is the epoch of a name's owner, and otherwise the reason for a refusal: `newer` if there is a newer
-- owner, `lost` if the server lost the epoch. `known` is the epoch that the server has.
local function refuse(known, given, newer, lost)
  if known == given then return 0 end
  return known and tonumber(known) > tonumber(given) and newer or lost
end

local function conclude(key, state, at)
  if ARGV[at + 2] ~= '' then
    move(key, state, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6],
         ARGV[at + 7] ~= '=' and ARGV[at + 7], ARGV[at + 8])
  end
  local blob = ARGV[at + 9]
  if blob == '+' then redis.call('HSET', key, 'blob', ARGV[at + 10])
  elseif blob == '-' then redis.call('HDEL', key, 'blob') end
end
