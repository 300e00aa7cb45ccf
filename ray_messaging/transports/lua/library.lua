-- Sections that several files share. Each file here has sections: a `script` is sent to the server by its name, a `shared` one goes
-- before the scripts that `transports/connection/scripts.py` lists.
--
-- Names say what a checkpoint has: a key, or a field of a hash, that begins with `start:` is of one start of the experiment,
-- and in no checkpoint; a key box...@<step> is of the boxes for that step; all else is of the run. See checkpoints.py.

-- shared refuse_while_moving ------------------------------------------------------------------------------------------
-- The beginning of every script on a cluster: refuse while the experiment's slot is being moved key by key, before
-- anything has happened. A script that meets a key on its way fails there, and what it wrote before stays. In such a
-- slot no node serves a key that does not exist, so that one such key stands for all that a script may touch.
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
-- A channel's name on the server. Pub/Sub knows no db, so in one that is not 0 an experiment's channels name it, as its
-- marks and ears do: @DB is replaced before the script is sent.
local function channel_here(prefix, channel)
  if '@DB' == '' then return channel end
  local ours = 'exps:' .. prefix:sub(5, -3) .. ':'
  return channel:sub(1, #ours) == ours and ours:sub(1, -2) .. '@DB:' .. channel:sub(#ours + 1) or channel
end

-- shared entry_order --------------------------------------------------------------------------------------------------
-- Return the lower one of two entry ids, which cannot be compared as text.
local function lower(a, b)
  local a_ms, a_n = a:match('^(%d+)-(%d+)$')
  local b_ms, b_n = b:match('^(%d+)-(%d+)$')
  a_ms, a_n, b_ms, b_n = tonumber(a_ms), tonumber(a_n), tonumber(b_ms), tonumber(b_n)
  if a_ms < b_ms or (a_ms == b_ms and a_n < b_n) then return a end
  return b
end

-- shared raise_number -------------------------------------------------------------------------------------------------
-- Raise a number above all that its field has had, and above those that were given
-- out before the server lost its data: it is at least the time in ms.
local function raise_number(key, field, above)
  local now, last = redis.call('TIME'), tonumber(redis.call('HGET', key, field) or 0)
  local number = math.max(last + 1, (above or 0) + 1, now[1] * 1000 + math.floor(now[2] / 1000))
  local text = string.format('%.0f', number)
  redis.call('HSET', key, field, text)
  return text
end

-- shared id_ceiling ---------------------------------------------------------------------------------------------------
-- Keep the ids of entries rising when a server comes back without its last
-- writes and with a clock that is behind. Ids are the server's time, readers go by them, and a reader may have read what
-- the server does not know any more.
--
-- meta  hash: life = run id of the server's process that saw to ids last, ceiling = ms above all ids that were given out
--       by then, and for as long after it as a lease lasts: it is written that long ahead, so that it is not among what
--       is lost
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
-- A lease says <beat>:<ms it lasts>:<ms when it was renewed>, and does not expire. Its
-- messager raises the beat. It is over for whoever has seen one beat for as long as it lasts by a clock of its own, which
-- no step of the server's touches: see end_leases. The time in it is for people, and for who asks whether to look at all.
local function renew_lease(lease, lease_ms, now)
  local last = redis.call('GET', lease)
  local beat = (tonumber(last and last:match('^(%d+):')) or 0) + 1
  redis.call('SET', lease, string.format('%.0f:%s:%.0f', beat, lease_ms, now))
end

-- shared date_change --------------------------------------------------------------------------------------------------
-- Date a change of the agents of mailboxes, which a directory version
-- has made. It counts from the first step that nobody has opened; returns that step.
--
-- meta  hash: hosts = <step>:<version> by commas, ascending: changes from that version up to the next one count from that
--       step on. Those from which on no message can wait in boxes any more are left out.
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
-- size is the frame's; messages, bytes, unlogged and unlogged_bytes are the mailbox's with the frame in it; the last two
-- are 0 while no event log is registered.
-- Returns 0: the frame fits; 5: it is larger than the mailbox; 2: the mailbox is full; 6: the event log is behind
local function limit_fate(size, max_rows, max_bytes, messages, bytes, unlogged, unlogged_bytes)
  if size > max_bytes then return 5 end
  if messages > max_rows or bytes > max_bytes then return 2 end
  if unlogged > max_rows or unlogged_bytes > max_bytes then return 6 end
  return 0
end

-- Keep the counts of a mailbox, and the id of its last entry.
local function store(state, box, last)
  if box.logged then
    redis.call('HSET', state, 'messages', box.messages, 'bytes', box.bytes, 'last', last, 'unlogged', box.unlogged,
               'unlogged_bytes', box.unlogged_bytes)
  else
    redis.call('HSET', state, 'messages', box.messages, 'bytes', box.bytes, 'last', last)
  end
end

-- shared mailbox_counts -----------------------------------------------------------------------------------------------
-- Mailboxes that take frames. mailbox_limit comes before it.

-- A mailbox with its counts and limits; nil where it is gone. Without a lease it is the caller's own.
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

-- Count a frame; return why the mailbox does not take it: 4 it would not if it were empty, 3 it is full, 5 the event log is
-- behind; nil where it does.
local function refusal(box, rows, size)
  count(box, rows, size)
  local fate = limit_fate(size, box.max_rows, box.max_bytes, box.messages, box.bytes, box.logged and box.unlogged or 0,
                          box.logged and box.unlogged_bytes or 0)
  return ({[5] = 4, [2] = 3, [6] = 5})[fate]
end

-- shared move_cursor --------------------------------------------------------------------------------------------------
-- Move a mailbox's cursor and trim what lies behind it, and behind the event log's
-- where one is registered. `keep` is the oldest entry that the reader needs; `handled` messages and bytes are totals under
-- the reader's epoch, so that a repeated commit counts nothing twice. One that comes late, when a later one was made over
-- another connection, changes nothing. `acked` are ranges that are acknowledged although something before them is not:
-- <entry> <row> <entry> <row> <messages>;..., each behind the first cursor up to the second.

-- What is known of a reader: epoch, born, logged, entry, row, messages, bytes, handled, handled_bytes, last. Read at once,
-- as each fetch comes by here.
local function reader(key)
  return redis.call('HMGET', key, 'epoch', 'born', 'logged', 'entry', 'row', 'messages', 'bytes', 'handled',
                    'handled_bytes', 'last')
end

-- How many messages and bytes wait behind a cursor. At the end of the mailbox there are none, whatever was counted: what
-- the reader could not decode it cannot take off.
local function behind(state, entry, row, handled, handled_bytes)
  if tonumber(row) == 0 and (not state[10] or lower(entry, state[10]) == state[10]) then return 0, 0 end
  return tonumber(state[6] or 0) + tonumber(state[8] or 0) - tonumber(handled),
         tonumber(state[7] or 0) + tonumber(state[9] or 0) - tonumber(handled_bytes)
end

-- Whether a cursor lies before another one; row 0 stands for all of an entry.
local function earlier(entry, row, other, other_row)
  if entry ~= other then return lower(entry, other) == entry end
  return row ~= 0 and (other_row == 0 or row < other_row)
end

local function move(key, state, stream, entry, row, keep, handled, handled_bytes, acked, acked_messages)
  if state[4] and earlier(entry, tonumber(row), state[4], tonumber(state[5] or 0)) then return end
  if acked then
    -- All that is acknowledged only ever grows, so that a commit with less of it comes late.
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
-- What a turn does besides sending: it moves the cursor of its mailbox, and replaces what the mailbox keeps for the next
-- one. A fetch's commit does nothing else; a transaction also sends, and has a number of its sender, so that it counts
-- once. Needs move_cursor. The eleven arguments of a conclusion, from ARGV[at] on:
--   the reader's epoch, key of its stream but for :<born>, entry ("" leaves the cursor), row, oldest entry to keep,
--   messages and bytes handled under this epoch so far: totals, what is acknowledged behind the cursor ("": nothing any
--   more; = or left out: it stays), and how many messages, what becomes of the blob: + it is the next one, - it goes, blob

-- Return 0 for the owner of a name, else why it is refused: `newer` where there is a newer one, `lost` where the server
-- lost it. `known` is the epoch that the server has, `given` the owner's.
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
