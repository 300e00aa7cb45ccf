#!lua
-- Write the messages of a dead letter into mailboxes again, all or none; messages without a listener stay dead.
--
-- KEYS[1] meta  hash: directory = version   KEYS[2] dead, KEYS[3] state::dead: see dead_letter_retention.lua
-- KEYS[4...]    per frame: mailbox state, lease (see send.lua)
-- ARGV[1] id of the letter  [2] name of this call: a repeated one finds its answer  [3] directory version
-- ARGV[4] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream  [5] frame of what stays dead,
--         or ""  [6...] per frame: mailbox, rows, frame
-- Returns {fate, mailbox that is the reason}; 0 it is not there (any more), 1 done, 2 the directory has changed, 3 a mailbox
-- is full, 4 a mailbox would not hold a frame if it were empty, 5 the event log is behind
if redis.call('HGET', KEYS[3], 'call') == ARGV[2] then return {1, ''} end
local letter = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not letter then return {0, ''} end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[3] then return {2, ''} end

local boxes = {}
for arg = 6, #ARGV, 3 do
  local name, at = ARGV[arg], 4 + 2 * (arg - 6) / 3
  local box = boxes[name] or taker_of(KEYS[at], KEYS[at + 1], ARGV[4], name)
  if not box then return {2, name} end
  boxes[name] = box
  local refused = refusal_of(box, tonumber(ARGV[arg + 1]), #ARGV[arg + 2])
  if refused then return {refused, name} end
end

for arg = 6, #ARGV, 3 do give(ARGV[4], boxes[ARGV[arg]], ARGV[arg + 1], ARGV[arg + 2]) end
for _, box in pairs(boxes) do keep_counts(box) end
local held = held_bytes(KEYS[2], KEYS[3], 0, 0) - weight(letter[2])
redis.call('XDEL', KEYS[2], letter[1])
settle(KEYS[2], KEYS[3], held)
if ARGV[5] ~= '' then
  -- A letter in the place of the older one, with its fields but for the rows: no limit, as that one was larger.
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
