-- AgentScope's message bus, see compat/agentscope.py.
--
-- KEYS[1] prefix of the bus's keys, rm:{name}:bus:, on an experiment rm:{exp_id}:bus:<name>:
--         q:<key>      a queue, a stream of JSON texts     lock:<key>      owner, token and number
--         taken:<key>  cursor, and owners of batches       owner:<owner>   a bus's lease
--         l:<key>      a log, a stream                     said:<owner>:*  its last answers
--         r:<key>      a registry, a hash                  put:<owner>     places of its items, by message id, see bus_take
-- ARGV[1] this bus  [2] number of the call  [3] prefix of the channels to which buses that live listen  [4...] see below

-- shared bus ----------------------------------------------------------------------------------------------------------
local prefix, owner, number, ears = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

-- Do what a call asks for, unless the call is repeated because its answer was lost: then return the same answer.
local function once(slot, act)
  local key = prefix .. 'said:' .. owner .. ':' .. slot
  local said = redis.call('GET', key)
  if said then
    said = cjson.decode(said)
    if said[1] == number then return said[2] end
  end
  local answer = act()
  redis.call('SET', key, cjson.encode({number, answer}), 'PX', 120000)
  return answer
end

local function lives(bus)
  return bus == owner or redis.call('EXISTS', prefix .. 'owner:' .. bus) == 1 or redis.call('PUBLISH', ears .. bus, '') > 0
end

-- Append the arguments from ARGV[first] to ARGV[last], which are JSON, to a queue (kind q) or a log (kind l). Call `note`
-- with the id of each new entry.
local function append(kind, name, ttl, most, first, last, note)
  local key = prefix .. kind .. ':' .. name
  if kind == 'q' and redis.call('EXISTS', key) == 0 then redis.call('DEL', prefix .. 'taken:' .. name) end
  for row = first, last do note(redis.call('XADD', key, '*', 'p', ARGV[row])) end
  if most ~= '0' then redis.call('XTRIM', key, 'MAXLEN', most) end
  if ttl ~= '0' then redis.call('PEXPIRE', key, ttl) end
end

-- script bus_write ----------------------------------------------------------------------------------------------------
-- Append entries, given as q (queue) or l (log), key, ms to live or 0, most entries or 0, number of entries, and the JSON of
-- each. Returns their ids.
return once('write', function()
  local ids, at = {}, 4
  while at < #ARGV do
    local last = at + 4 + ARGV[at + 4]
    append(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], at + 5, last, function(id) ids[#ids + 1] = id end)
    at = last + 1
  end
  return ids
end)

-- script bus_take -----------------------------------------------------------------------------------------------------
-- Move items to their queues and logs from the mailbox that all buses of an experiment share, unless another bus has
-- moved the same items.
--
-- KEYS[2] state of the mailbox, see commit
-- ARGV[4] entry of the cursor, as it was read  [5] last entry that is moved  [6] oldest entry to keep  [7] key of the mailbox's
--         stream, but for :<born>  [8] messages and [9] bytes that are moved
-- ARGV[10...] for each: q or l, key, ms to live or 0, most entries or 0, the bus that has pushed it or "", message id, JSON
local state, pushers = reader(KEYS[2]), {}
if state[4] ~= ARGV[4] then return end
for at = 10, #ARGV, 7 do
  local pusher = ARGV[at + 4]
  append(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], at + 6, at + 6, function(id)
    if pusher ~= '' then redis.call('HSET', prefix .. 'put:' .. pusher, ARGV[at + 5], id) end
  end)
  pushers[pusher] = true
end
for pusher in pairs(pushers) do redis.call('PEXPIRE', prefix .. 'put:' .. pusher, 120000) end
move(KEYS[2], state, ARGV[7], ARGV[5], '0', ARGV[6], (state[8] or 0) + ARGV[8], (state[9] or 0) + ARGV[9])

-- script bus_drain ----------------------------------------------------------------------------------------------------
-- Hand out a queue's oldest entries. Entries that were handed to buses that have died come first. If this bus got a batch
-- earlier and does not name the batch as done, the answer was lost, and the batch is handed out again too. What this call
-- could hand out, but does not, is nobody's from now on, so that any bus gets it.
--
-- ARGV[4] key  [5] most entries; 0: none, but a queue is deleted if it is empty and all its batches are done
-- ARGV[6...] the batches of this bus that are done, by their first entries
-- Returns the first entries of the new batches, and all their entries.
local queue, taken, most = prefix .. 'q:' .. ARGV[4], prefix .. 'taken:' .. ARGV[4], tonumber(ARGV[5])
if redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', taken)
  return {{}, {}}
end
for at = 6, #ARGV do redis.call('HDEL', taken, ARGV[at]) end

local function before(a, b)
  local ms, seq = a:match('(%d+)-(%d+)')
  local other_ms, other_seq = b:match('(%d+)-(%d+)')
  return tonumber(ms) < tonumber(other_ms) or ms == other_ms and tonumber(seq) < tonumber(other_seq)
end

local oldest  -- the first entry of the oldest batch that is not done
local function note(first)
  if not oldest or before(first, oldest) then oldest = first end
end
local NOBODY = '-'
local function keep(first, bus, last)
  redis.call('HSET', taken, first, bus .. ' ' .. last)
  note(first)
end

local held, free, cursor = redis.call('HGETALL', taken), {}, nil
for at = 1, #held, 2 do
  if held[at] == 'cursor' then
    cursor = held[at + 1]
  else
    local bus, last = held[at + 1]:match('(%S+) (%S+)')
    if bus == owner or not lives(bus) then free[#free + 1] = {held[at], last} else note(held[at]) end
  end
end
table.sort(free, function(a, b) return before(a[1], b[1]) end)

local firsts, found = {}, {}
-- Hand out entries between the ids `from` and `to`, as many as are still wanted. Return the id of the last entry that was
-- handed out, and the id of the first entry that was not.
local function hand_out(from, to)
  local wanted = most - #found
  if wanted == 0 then return end
  local entries = redis.call('XRANGE', queue, from, to, 'COUNT', wanted + 1)
  local left = table.remove(entries, wanted + 1)
  for _, entry in ipairs(entries) do found[#found + 1] = {entry[1], entry[2][2]} end
  if #entries == 0 then return end
  firsts[#firsts + 1] = entries[1][1]
  keep(entries[1][1], owner, entries[#entries][1])
  return entries[#entries][1], left and left[1]
end

for _, batch in ipairs(free) do
  local first, last = unpack(batch)
  if #found == most then
    keep(first, NOBODY, last)
  else
    redis.call('HDEL', taken, first)
    local _, left = hand_out(first, last)
    if left then keep(left, NOBODY, last) end
  end
end
local last = hand_out(cursor and '(' .. cursor or '-', '+')
if last then
  cursor = last
  redis.call('HSET', taken, 'cursor', last)
end
if oldest then
  redis.call('XTRIM', queue, 'MINID', oldest)
elseif cursor then
  local ms, seq = cursor:match('(%d+)-(%d+)')
  redis.call('XTRIM', queue, 'MINID', ms .. '-' .. string.format('%.0f', tonumber(seq) + 1))
  if most == 0 and redis.call('XLEN', queue) == 0 then redis.call('DEL', queue, taken) end
end
return {firsts, found}

-- script bus_set_if ---------------------------------------------------------------------------------------------------
-- ARGV[4] registry  [5] field  [6] value  [7] the value that it must have  [8] ms to live, or 0
return once('ask', function()
  local registry = prefix .. 'r:' .. ARGV[4]
  if redis.call('HGET', registry, ARGV[5]) ~= ARGV[7] then return 0 end
  redis.call('HSET', registry, ARGV[5], ARGV[6])
  if ARGV[8] ~= '0' then redis.call('PEXPIRE', registry, ARGV[8]) end
  return 1
end)

-- script bus_pop ------------------------------------------------------------------------------------------------------
-- Remove a field, ARGV[5], of a registry, ARGV[4], and return its value.
return once('ask', function()
  local registry = prefix .. 'r:' .. ARGV[4]
  local value = redis.call('HGET', registry, ARGV[5])
  if value then redis.call('HDEL', registry, ARGV[5]) end
  return value
end)

-- script bus_lock -----------------------------------------------------------------------------------------------------
-- ARGV[4] lock  [5] token of its new owner  [6] ms to live
-- Returns the lock's number, which is higher than all earlier numbers, or 0 if another bus has the lock.
local lock = prefix .. 'lock:' .. ARGV[4]
local held = redis.call('HMGET', lock, 'owner', 'token', 'number')
if held[2] == ARGV[5] then return tonumber(held[3]) end
if held[1] and lives(held[1]) then return 0 end
local fence = redis.call('HINCRBY', prefix .. 'locks', 'number', 1)
redis.call('HSET', lock, 'owner', owner, 'token', ARGV[5], 'number', fence)
redis.call('PEXPIRE', lock, ARGV[6])
return fence

-- script bus_lock_number ----------------------------------------------------------------------------------------------
-- Return the number of a lock, ARGV[4], or 0 if the lock is free.
local held = redis.call('HMGET', prefix .. 'lock:' .. ARGV[4], 'owner', 'number')
return held[1] and lives(held[1]) and tonumber(held[2]) or 0

-- script bus_unlock ---------------------------------------------------------------------------------------------------
-- ARGV[4] lock  [5] token of its owner
local lock = prefix .. 'lock:' .. ARGV[4]
if redis.call('HGET', lock, 'token') == ARGV[5] then
  redis.call('DEL', lock)
  redis.call('PUBLISH', ears .. 'unlocked', '')
end

-- script bus_beat -----------------------------------------------------------------------------------------------------
-- Renew the lease of a bus, for ARGV[4] ms, and its locks, each given as token, key, ms to live.
-- Returns the tokens of the locks that the bus has lost.
redis.call('SET', prefix .. 'owner:' .. owner, '1', 'PX', ARGV[4])
local lost = {}
for at = 5, #ARGV, 3 do
  local lock = prefix .. 'lock:' .. ARGV[at + 1]
  if redis.call('HGET', lock, 'token') == ARGV[at] then
    redis.call('PEXPIRE', lock, ARGV[at + 2])
  else
    lost[#lost + 1] = ARGV[at]
  end
end
return lost
