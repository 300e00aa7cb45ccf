-- Shared by commit.lua and send.lua: move a mailbox's cursor and trim what lies behind it, and behind the event log's
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
