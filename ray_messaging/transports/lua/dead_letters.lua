-- Dead letters.

-- shared dead_letter_retention ----------------------------------------------------------------------------------------
-- Dead letters, and their limit.
--
-- dead         stream of frames that nobody will read. Fields: mailbox, entry, row (rows before it were handled), reason,
--              f = frame; born = how many mailboxes had been created when the frame's mailbox was removed, exclusive = 1
--              if that mailbox alone listened for its agents (both fields are missing if the mailbox's reader could not
--              decode the frame); at = ms, if the letter is the rest of an older letter; acked = further rows that were
--              handled: <low>-<high>,... (no high: to the end)
-- start:state::dead  hash: letters and bytes = of all letters, dropped and dropped_bytes = of letters dropped at the
--              limit, call and answer = of the last requeue or drop, which may be repeated. Other clients may write to
--              these keys too: so all letters are counted again when `letters` is not their number, and an invalid count
--              is 0
-- A letter counts as the bytes of its frame plus 256, so that the limit also holds for letters without a frame.
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

-- Return the bytes of all letters, of which `letters` letters with `added` bytes are not counted yet.
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

-- Store the number of letters that exist now, and their bytes.
local function settle(dead, state, held)
  local letters = redis.call('XLEN', dead)
  redis.call('HSET', state, 'letters', letters, 'bytes', string.format('%.0f', letters > 0 and held or 0))
end

-- Add letters that were dropped to the counters `dropped` and `dropped_bytes`.
local function lose(state, letters, nbytes)
  local now = redis.call('HMGET', state, 'dropped', 'dropped_bytes')
  redis.call('HSET', state, 'dropped', string.format('%.0f', (natural(now[1]) or 0) + letters),
             'dropped_bytes', string.format('%.0f', (natural(now[2]) or 0) + nbytes))
end

-- Count `letters` new letters with `added` bytes; drop the oldest letters while all letters exceed the limit.
local function bound(dead, prefix, limit, letters, added)
  local state = prefix .. 'start:state::dead'
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
    -- XTRIM deletes many entries in one command without their ids; XDEL would need each id.
    if kept then redis.call('XTRIM', dead, 'MINID', kept)
    else redis.call('XTRIM', dead, 'MINID', oldest[#oldest][1]); redis.call('XDEL', dead, oldest[#oldest][1]) end
    count = dropped_bytes - before < 262144 and 256 or 16
  end
  settle(dead, state, held)
  if dropped > 0 then lose(state, dropped, dropped_bytes) end
end

-- Add a letter. If the letter alone exceeds the limit, leave out its frame, so that the other letters stay. Return the
-- letter's bytes.
local function add(dead, prefix, limit, fields)
  if weight(fields) > tonumber(limit) then
    local reason, nbytes = 0, 0
    for i = 1, #fields, 2 do
      if fields[i] == 'reason' then reason = i + 1 end
      if fields[i] == 'f' then nbytes, fields[i + 1] = #fields[i + 1], '' end
    end
    fields[reason] = fields[reason] .. ' (its frame of ' .. nbytes .. ' bytes is above the limit of dead letters, and lost)'
    lose(prefix .. 'start:state::dead', 1, nbytes)
  end
  redis.call('XADD', dead, '*', unpack(fields))
  return weight(fields)
end

local function lay(dead, prefix, limit, fields)
  bound(dead, prefix, limit, 1, add(dead, prefix, limit, fields))
end

-- Return the ranges that are acknowledged behind the cursor (see move_cursor) as a list.
local function ranges_of(acked)
  local ranges = {first = 1}
  for after, after_row, last, last_row in (acked or ''):gmatch('(%d+%-%d+) (%d+) (%d+%-%d+) (%d+) %d+') do
    ranges[#ranges + 1] = {after = after, after_row = after_row, last = last, last_row = last_row}
  end
  return ranges
end

-- Return the rows of an entry that are in ranges, or 0 if all rows are. The caller must ask for entries in their order.
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

-- Remove a mailbox; its unread frames become dead letters. While an event log is registered, the mailbox's stream is kept
-- until the log has read the stream to its end. The stream is then named start:ended:<mailbox>:<born>, so that the
-- mailbox's reader cannot go on reading frames that became dead letters. The set `start:ended` names the stream, and an
-- entry in the log stream (m = <mailbox>:<born>) wakes the log's writer. Frames that the reader has rejected are dead
-- letters already; the stream rejected:<mailbox>:<born> has their ids. If the mailbox's messager is alive, a message on
-- its ear tells it to end its subscriptions, because a subscriber would still be counted as a receiver.
local function bury(keys, prefix, name, reason, limit)
  local state = prefix .. 'state:' .. name
  local now = redis.call('HMGET', state, 'entry', 'row', 'born', 'exclusive', 'acked')
  local buried, ranges = 0, ranges_of(now[5])
  if now[3] then
    local stream, rejected = prefix .. 'mailbox:' .. name .. ':' .. now[3], prefix .. 'rejected:' .. name .. ':' .. now[3]
    local born = redis.call('HGET', keys[1], 'born') or now[3]
    -- Entries that the reader has handled may still exist because the log needs them; they are no dead letters.
    local first = now[2] == '0' and '(' .. now[1] or now[1]
    local logged = redis.call('HEXISTS', keys[1], 'start:log') == 1
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
      -- Entries that were copied to the dead letters are deleted at once, so that memory does not hold both.
      if first and not logged then redis.call('XTRIM', stream, 'MINID', entries[count][1]) end
      count = added < 262144 and 256 or 16  -- if the frames are small, more of them are read at once, which takes less time
    end
    if not logged then
      redis.call('DEL', stream)
    else
      if redis.call('EXISTS', stream) == 1 then
        redis.call('RENAME', stream, prefix .. 'start:ended:' .. name .. ':' .. now[3])
      end
      redis.call('SADD', prefix .. 'start:ended', name .. ':' .. now[3])
      redis.call('XADD', prefix .. 'start:mailbox::log:0', '*', 'm', name .. ':' .. now[3])
    end
    redis.call('DEL', rejected)
  end
  redis.call('DEL', state, prefix .. 'start:lease:' .. name)
  redis.pcall('PUBLISH', prefix .. 'own@DB:ear:' .. name, 'gone')
  if redis.call('HDEL', keys[2], name) + redis.call('HDEL', keys[3], name) > 0 then
    redis.call('HINCRBY', keys[1], 'directory', 1)
  end
  return buried
end

-- script read_letters -------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return a page of dead letters in their order; it has fewer letters if the letters are large.
--
-- KEYS[1] dead  stream: see dead_letter_retention
-- ARGV[1] id of the letter before the page, or 0-0  [2] most letters  [3] bytes after which no further letter is added
-- Returns {{id, {field, value...}}...}
local found, nbytes, after = {}, 0, ARGV[1]
while #found < tonumber(ARGV[2]) and nbytes < tonumber(ARGV[3]) do
  local letter = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', 1)[1]
  if not letter then break end
  found[#found + 1], after = letter, letter[1]
  for i = 2, #letter[2], 2 do nbytes = nbytes + #letter[2][i] end
end
return found

-- script reject_frame -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Add an undecodable frame to the dead letters. A restarted reader reads the frame again, and the second call does
-- nothing. Allowed when memory is full, because commits that free memory may wait behind that frame.
--
-- KEYS[1] dead      stream: see dead_letter_retention
-- KEYS[2] state     hash of the mailbox: born, entry = its cursor (for the log stream: logged); without this hash the
--                   mailbox was removed, and its unread frames are dead letters already
-- ARGV[1] prefix of this experiment's keys: rejected:<mailbox>:<born> is a stream with the ids of the entries that were
--         rejected and are not handled yet  [2] mailbox  [3] entry  [4] reason  [5] frame  [6] bytes of dead letters that
--         are kept
-- Returns 1, or 0 if the frame is a dead letter already
local state = redis.call('HMGET', KEYS[2], 'born', 'entry', 'logged')
if not state[1] then return 0 end
local rejected = ARGV[1] .. 'rejected:' .. ARGV[2] .. ':' .. state[1]
-- A reader reads entries in their order. So an entry whose id is not above the last rejected id was rejected before.
local added = redis.pcall('XADD', rejected, ARGV[3], 'r', '')
if type(added) == 'table' and added.err then
  if added.err:find('equal or smaller', 1, true) then return 0 end
  return added
end
redis.call('XTRIM', rejected, 'MINID', state[2] or state[3] or '0-0')
lay(KEYS[1], ARGV[1], ARGV[6], {'mailbox', ARGV[2], 'entry', ARGV[3], 'row', '0', 'reason', ARGV[4], 'f', ARGV[5]})
return 1

-- script keep_failed --------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Add a message whose handler has failed to the dead letters. Allowed when memory is full, because the commit that
-- follows frees memory.
--
-- KEYS[1] dead   stream: see dead_letter_retention
-- KEYS[2] state  hash of the mailbox: born, exclusive, failures = how many such messages there were, failed = the last
--                256 of them as <entry>.<row>, because this call may be repeated; without this hash the mailbox was
--                removed, and its uncommitted messages are dead letters already
-- KEYS[3] meta   hash: born
-- ARGV[1] prefix of this experiment's keys  [2] mailbox  [3] entry  [4] reason  [5] frame of the message  [6] bytes of
--         dead letters that are kept  [7] row of the entry
-- Returns 1, or 0 if the message is a dead letter already
local state = redis.call('HMGET', KEYS[2], 'born', 'exclusive', 'failed')
if not state[1] then return 0 end
local this, failed = ARGV[3] .. '.' .. ARGV[7], {}
for each in (state[3] or ''):gmatch('%S+') do
  if each == this then return 0 end
  failed[#failed + 1] = each
end
failed[#failed + 1] = this
redis.call('HSET', KEYS[2], 'failed', table.concat(failed, ' ', math.max(1, #failed - 255)))
redis.call('HINCRBY', KEYS[2], 'failures', 1)
lay(KEYS[1], ARGV[1], ARGV[6], {'mailbox', ARGV[2], 'entry', ARGV[3], 'row', '0', 'reason', ARGV[4],
    'born', redis.call('HGET', KEYS[3], 'born') or state[1], 'exclusive', state[2] or '0', 'acked', '', 'f', ARGV[5]})
return 1

-- script requeue ------------------------------------------------------------------------------------------------------
#!lua
-- Write the messages of a dead letter into mailboxes again, all or none; messages without a listener stay dead.
--
-- KEYS[1] meta  hash: directory = version   KEYS[2] dead, KEYS[3] state::dead: see dead_letter_retention
-- KEYS[4...]    per frame: mailbox state, lease (see send)
-- ARGV[1] id of the letter  [2] name of this call; a repeated call has the same name, and gets the first call's answer
-- ARGV[3] directory version  [4] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream
-- ARGV[5] frame of the messages that stay dead, or ""  [6...] per frame: mailbox, rows, frame
-- Returns {fate, mailbox that is the reason}; fate 0: there is no such letter, 1: done, 2: the directory has changed,
-- 3: a mailbox is full, 4: a frame exceeds the limit of a mailbox even if it were empty, 5: the event log is behind
if redis.call('HGET', KEYS[3], 'call') == ARGV[2] then return {1, ''} end
local letter = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not letter then return {0, ''} end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[3] then return {2, ''} end

local boxes = {}
for arg = 6, #ARGV, 3 do
  local name, at = ARGV[arg], 4 + 2 * (arg - 6) / 3
  local box = boxes[name] or counts_of(KEYS[at], KEYS[at + 1], ARGV[4], name)
  if box and box.stepped then box = next_box(ARGV[4], name) end
  if not box then return {2, name} end
  boxes[name] = box
  local rows, size, refused = tonumber(ARGV[arg + 1]), #ARGV[arg + 2], nil
  if box.limits then refused = not box_takes(box, box.limits, rows, size) and 4 or nil
  else refused = refusal(box, rows, size) end
  if refused then return {refused, name} end
end

for arg = 6, #ARGV, 3 do
  local box = boxes[ARGV[arg]]
  if box.limits then put_from_outside(ARGV[4], box, tonumber(ARGV[arg + 1]), ARGV[arg + 2])
  else box.last = redis.call('XADD', box.stream, '*', 'f', ARGV[arg + 2]) end
end
for _, box in pairs(boxes) do
  if not box.limits then store(box.state, box, box.last) end
end
local held = held_bytes(KEYS[2], KEYS[3], 0, 0) - weight(letter[2])
redis.call('XDEL', KEYS[2], letter[1])
settle(KEYS[2], KEYS[3], held)
if ARGV[5] ~= '' then
  -- A new letter replaces the old one, with the old one's other fields. No limit is applied, because the old letter was
  -- larger.
  local fields, at = {'f', ARGV[5], 'row', '0', 'acked', ''}, letter[1]:match('^%d+')
  for i = 1, #letter[2], 2 do
    local name, value = letter[2][i], letter[2][i + 1]
    if name == 'at' then at = value
    elseif name ~= 'f' and name ~= 'row' and name ~= 'acked' then
      fields[#fields + 1], fields[#fields + 2] = name, value
    end
  end
  fields[#fields + 1], fields[#fields + 2] = 'at', at
  redis.call('XADD', KEYS[2], '*', unpack(fields))
  bound(KEYS[2], ARGV[4], math.huge, 1, weight(fields))
end
redis.call('HSET', KEYS[3], 'call', ARGV[2])
return {1, ''}

-- script drop_letters -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Delete dead letters; count the other letters again if another client has written letters. Allowed when memory is full,
-- because this frees memory.
--
-- KEYS[1] dead, KEYS[2] state::dead: see dead_letter_retention
-- ARGV[1] name of this call; a repeated call has the same name, and gets the first call's answer  [2...] ids
-- Returns how many of these letters existed
local now = redis.call('HMGET', KEYS[2], 'call', 'answer')
if now[1] == ARGV[1] then return tonumber(now[2]) end
local dropped, held = 0, held_bytes(KEYS[1], KEYS[2], 0, 0)
for i = 2, #ARGV do
  local letter = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if letter then
    redis.call('XDEL', KEYS[1], letter[1])
    dropped, held = dropped + 1, held - weight(letter[2])
  end
end
settle(KEYS[1], KEYS[2], held)
redis.call('HSET', KEYS[2], 'call', ARGV[1], 'answer', dropped)
return dropped
