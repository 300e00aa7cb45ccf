-- Shared by load_directory.lua, end_leases.lua, remove_mailbox.lua, reject_frame.lua, keep_failed.lua, requeue.lua and
-- drop_letters.lua: dead letters, and their limit.
--
-- dead         stream: frames nobody will read: mailbox, entry, row (rows before it were handled), reason, f = frame;
--              born = incarnations of mailboxes given out when its mailbox went, exclusive = 1 where that one alone
--              listened for its agents (both missing: its reader could not decode it); at = ms, where the letter is what
--              is left of an older one; acked = rows that were handled, too: <low>-<high>,... (no high: to the end)
-- state::dead  hash: letters and bytes = of all letters, dropped and dropped_bytes = of those that the limit took, call and
--              answer = the last requeue or drop, which may be repeated. Whoever else writes letters, or this, makes no
--              count wrong for long: where `letters` is not how many there are, all are counted anew, and what is no
--              count is 0
-- A letter counts as its frame and 256 bytes: those without a frame are bounded, too.
local function weight(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'f' then return #fields[i + 1] + 256 end
  end
  return 256
end

local function natural(value)
  local number = value and value:find('^%d+$') and tonumber(value)
  return number and number < 2 ^ 53 and number or nil
end

-- Return the bytes of all letters, of which so many with so many bytes are not counted yet.
local function held_bytes(dead, state, letters, added)
  local now = redis.call('HMGET', state, 'letters', 'bytes')
  local known, held = natural(now[1] or '0'), natural(now[2] or '0')
  if known and held and known + letters == redis.call('XLEN', dead) then return held + added end
  local nbytes, after = 0, '-'
  repeat
    local found = redis.call('XRANGE', dead, after, '+', 'COUNT', 64)
    for _, letter in ipairs(found) do nbytes, after = nbytes + weight(letter[2]), '(' .. letter[1] end
  until #found == 0
  return nbytes
end

-- Keep the count of the letters as they are now.
local function settle(dead, state, held)
  local letters = redis.call('XLEN', dead)
  redis.call('HSET', state, 'letters', letters, 'bytes', string.format('%.0f', letters > 0 and held or 0))
end

-- Count letters that are lost.
local function lose(state, letters, nbytes)
  local now = redis.call('HMGET', state, 'dropped', 'dropped_bytes')
  redis.call('HSET', state, 'dropped', string.format('%.0f', (natural(now[1]) or 0) + letters),
             'dropped_bytes', string.format('%.0f', (natural(now[2]) or 0) + nbytes))
end

-- Count so many more letters with so many bytes, and drop the oldest ones that are too many.
local function bound(dead, prefix, limit, letters, added)
  local state = prefix .. 'state::dead'
  local held, dropped, dropped_bytes = held_bytes(dead, state, letters, added), 0, 0
  local count = 16
  while held > tonumber(limit) do
    local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', count)
    if #oldest == 0 then break end
    local kept, before = nil, dropped_bytes
    for _, letter in ipairs(oldest) do
      if held <= tonumber(limit) then kept = letter[1]; break end
      local nbytes = weight(letter[2])
      held, dropped, dropped_bytes = held - nbytes, dropped + 1, dropped_bytes + nbytes
    end
    -- Trimming takes many at once, which XDEL does not.
    if kept then redis.call('XTRIM', dead, 'MINID', kept)
    else redis.call('XTRIM', dead, 'MINID', oldest[#oldest][1]); redis.call('XDEL', dead, oldest[#oldest][1]) end
    count = dropped_bytes - before < 262144 and 256 or 16
  end
  settle(dead, state, held)
  if dropped > 0 then lose(state, dropped, dropped_bytes) end
end

-- Add a letter, without its frame where that alone is above the limit: the others stay. Returns what it weighs.
local function add(dead, prefix, limit, fields)
  if weight(fields) > tonumber(limit) then
    local reason, nbytes = 0, 0
    for i = 1, #fields, 2 do
      if fields[i] == 'reason' then reason = i + 1 end
      if fields[i] == 'f' then nbytes, fields[i + 1] = #fields[i + 1], '' end
    end
    fields[reason] = fields[reason] .. ' (its frame of ' .. nbytes .. ' bytes is above the limit of dead letters, and lost)'
    lose(prefix .. 'state::dead', 1, nbytes)
  end
  redis.call('XADD', dead, '*', unpack(fields))
  return weight(fields)
end

local function lay(dead, prefix, limit, fields)
  bound(dead, prefix, limit, 1, add(dead, prefix, limit, fields))
end

-- What is acknowledged behind the cursor (see move_cursor.lua), as a list.
local function ranges_of(acked)
  local ranges = {first = 1}
  for after, after_row, last, last_row in (acked or ''):gmatch('(%d+%-%d+) (%d+) (%d+%-%d+) (%d+) %d+') do
    ranges[#ranges + 1] = {after = after, after_row = after_row, last = last, last_row = last_row}
  end
  return ranges
end

-- Which rows of an entry are in ranges; entries are asked for in their order. Returns 0 for all of them.
local function rows_in(ranges, entry)
  local rows = {}
  for i = ranges.first, #ranges do
    local range = ranges[i]
    if range.last ~= entry and lower(range.last, entry) == range.last then
      ranges.first = i + 1
    elseif range.after == entry and range.after_row == '0' or lower(range.after, entry) ~= range.after then
      break
    else
      local low = range.after == entry and range.after_row or '0'
      local high = range.last == entry and range.last_row ~= '0' and range.last_row or ''
      if low == '0' and high == '' then return 0 end
      rows[#rows + 1] = low .. '-' .. high
    end
  end
  return table.concat(rows, ',')
end

-- Take a mailbox out; its unread frames become dead letters. While an event log is registered its stream stays until the
-- log has read it to its end, under another key, as its reader must not go on reading what became dead letters:
-- ended:<mailbox>:<born>. The set `ended` names it, and an entry in the log stream (m = <mailbox>:<born>) wakes the
-- log's writer. What its reader has rejected is a dead letter already: the stream rejected:<mailbox>:<born> has its ids.
-- Its messager, where it lives, hears on its ear, and subscribes to nothing any more: it would count as a taker.
local function bury(keys, prefix, name, reason, limit)
  local state = prefix .. 'state:' .. name
  local now = redis.call('HMGET', state, 'entry', 'row', 'born', 'exclusive', 'acked')
  local buried, ranges = 0, ranges_of(now[5])
  if now[3] then
    local stream, rejected = prefix .. 'mailbox:' .. name .. ':' .. now[3], prefix .. 'rejected:' .. name .. ':' .. now[3]
    local born = redis.call('HGET', keys[1], 'born') or now[3]
    -- What the reader has handled may still be there, for the log: it is not dead.
    local first = now[2] == '0' and '(' .. now[1] or now[1]
    local logged = redis.call('HEXISTS', keys[1], 'log') == 1
    local some_rejected = redis.call('EXISTS', rejected) == 1
    local count = 16
    while first do
      local entries, added, before = redis.call('XRANGE', stream, first, '+', 'COUNT', count), 0, buried
      for _, entry in ipairs(entries) do
        local acked = rows_in(ranges, entry[1])
        if acked ~= 0 and (not some_rejected or #redis.call('XRANGE', rejected, entry[1], entry[1]) == 0) then
          local row = entry[1] == now[1] and now[2] or '0'
          added = added + add(keys[4], prefix, limit, {'mailbox', name, 'entry', entry[1], 'row', row, 'reason', reason,
                                        'born', born, 'exclusive', now[4] or '0', 'acked', acked, 'f', entry[2][2]})
          buried = buried + 1
        end
      end
      if added > 0 then bound(keys[4], prefix, limit, buried - before, added) end
      first = #entries == count and '(' .. entries[count][1]
      if first and not logged then redis.call('XTRIM', stream, 'MINID', entries[count][1]) end  -- memory holds it once
      count = added < 262144 and 256 or 16  -- small frames in larger steps: the server serves nobody else meanwhile
    end
    if not logged then
      redis.call('DEL', stream)
    else
      if redis.call('EXISTS', stream) == 1 then
        redis.call('RENAME', stream, prefix .. 'ended:' .. name .. ':' .. now[3])
      end
      redis.call('SADD', prefix .. 'ended', name .. ':' .. now[3])
      redis.call('XADD', prefix .. 'mailbox::log:0', '*', 'm', name .. ':' .. now[3])
    end
    redis.call('DEL', rejected)
  end
  redis.call('DEL', state, prefix .. 'lease:' .. name)
  redis.pcall('PUBLISH', prefix .. 'own:ear:' .. name, 'gone')
  if redis.call('HDEL', keys[2], name) + redis.call('HDEL', keys[3], name) > 0 then
    redis.call('HINCRBY', keys[1], 'directory', 1)
  end
  return buried
end
