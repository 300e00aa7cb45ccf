#!lua
-- Write the messages of a dead letter into mailboxes again, all or none; messages without a listener stay dead.
--
-- KEYS[1] meta  hash: directory = version   KEYS[2] dead, KEYS[3] state::dead: see dead_letter_retention.lua
-- KEYS[4...]    per frame: mailbox state, lease (see send.lua)
-- ARGV[1] id of the letter  [2] name of this call: a repeated one finds its answer  [3] directory version
-- ARGV[4] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream  [5] frame of what stays dead,
--         or ""
-- ARGV[6...]    per frame: mailbox, rows, frame
-- Returns {fate, mailbox that is the reason}; 0 it is not there (any more), 1 done, 2 the directory has changed, 3 a mailbox
-- is full, 4 a mailbox would not hold a frame if it were empty, 5 the event log is behind
if redis.call('HGET', KEYS[3], 'call') == ARGV[2] then return {1, ''} end
local letter = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not letter then return {0, ''} end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[3] then return {2, ''} end

local boxes = {}
local function look(name, at)
  local now = redis.call('HMGET', KEYS[at], 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'stepped')
  if not now[3] or (now[5] == '1' and redis.call('EXISTS', KEYS[at + 1]) == 0) then return nil end
  if now[10] then return next_box(ARGV[4], name) end
  return {state = KEYS[at], rows = tonumber(now[1]), bytes = tonumber(now[2]), max_rows = tonumber(now[3]),
          max_bytes = tonumber(now[4]), stream = ARGV[4] .. 'mailbox:' .. name .. ':' .. now[6], logged = now[7],
          unlogged = now[7] and tonumber(now[8] or 0) or 0, unlogged_bytes = now[7] and tonumber(now[9] or 0) or 0}
end
for arg = 6, #ARGV, 3 do
  local name, rows, nbytes = ARGV[arg], tonumber(ARGV[arg + 1]), #ARGV[arg + 2]
  local box = boxes[name] or look(name, 4 + 2 * (arg - 6) / 3)
  if not box then return {2, name} end
  boxes[name] = box
  local fate
  if box.limits then
    fate = box_takes(box, box.limits, rows, nbytes) and 0 or 5
  else
    box.rows, box.bytes = box.rows + rows, box.bytes + nbytes
    if box.logged then box.unlogged, box.unlogged_bytes = box.unlogged + rows, box.unlogged_bytes + nbytes end
    fate = limit_fate(nbytes, box.max_rows, box.max_bytes, box.rows, box.bytes, box.unlogged, box.unlogged_bytes)
  end
  if fate ~= 0 then return {({[5] = 4, [2] = 3, [6] = 5})[fate], name} end
end

for arg = 6, #ARGV, 3 do
  local box = boxes[ARGV[arg]]
  if box.limits then put_from_outside(ARGV[4], box, tonumber(ARGV[arg + 1]), ARGV[arg + 2])
  else box.last = redis.call('XADD', box.stream, '*', 'f', ARGV[arg + 2]) end
end
for _, box in pairs(boxes) do
  if box.last then redis.call('HSET', box.state, 'messages', box.rows, 'bytes', box.bytes, 'last', box.last) end
  if box.logged then redis.call('HSET', box.state, 'unlogged', box.unlogged, 'unlogged_bytes', box.unlogged_bytes) end
end
local held = held_bytes(KEYS[2], KEYS[3], 0, 0) - weight(letter[2])
redis.call('XDEL', KEYS[2], letter[1])
settle(KEYS[2], KEYS[3], held)
if ARGV[5] ~= '' then
  local fields, known = {}, {}
  for i = 1, #letter[2], 2 do
    local name, value = letter[2][i], letter[2][i + 1]
    known[name] = true
    if name == 'f' then value = ARGV[5] elseif name == 'row' then value = '0' elseif name == 'acked' then value = '' end
    fields[i], fields[i + 1] = name, value
  end
  if not known.at then
    fields[#fields + 1], fields[#fields + 2] = 'at', letter[1]:match('^%d+')
  end
  -- No limit: it takes the place of one that was larger.
  lay(KEYS[2], ARGV[4], math.huge, fields)
end
redis.call('HSET', KEYS[3], 'call', ARGV[2])
return {1, ''}
