#!lua
-- Write the messages of a dead letter into mailboxes again, all or none; messages without a listener stay dead, and those for
-- mailboxes of other shards become a letter for each of these, which receive_letter.lua and end_forward.lua bring there.
--
-- KEYS[1] meta  hash: directory = version, born   KEYS[2] dead, KEYS[3] state::dead: see dead_letter_retention.lua
-- KEYS[4] forwards: see lay_in_place.lua
-- KEYS[5...]    per frame: mailbox state, lease (see send.lua)
-- ARGV[1] id of the letter  [2] name of this call: a repeated one finds its answer  [3] directory version
-- ARGV[4] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream  [5] frame of what stays dead,
--         or ""  [6] number of letters for other shards
-- ARGV[7...]    per such letter: mailbox, shard, exclusive 1/0, frame; then per frame: mailbox, rows, frame
-- Returns {fate, mailbox that is the reason}; 0 it is not there (any more), 1 done, 2 the directory has changed, 3 a mailbox
-- is full, 4 a mailbox would not hold a frame if it were empty, 5 the event log is behind, 7 an earlier letter is on its way
-- to that mailbox
if redis.call('HGET', KEYS[3], 'call') == ARGV[2] then return {1, ''} end
local letter = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])[1]
if not letter then return {0, ''} end
local meta = redis.call('HMGET', KEYS[1], 'directory', 'born')
if (meta[1] or '0') ~= ARGV[3] then return {2, ''} end

local first = 7 + 4 * tonumber(ARGV[6])
for arg = 7, first - 1, 4 do
  local under_way = redis.call('HGET', KEYS[4], ARGV[arg])
  if under_way and under_way ~= ARGV[1] and #redis.call('XRANGE', KEYS[2], under_way, under_way) > 0 then return {7, ARGV[arg]} end
end
local boxes = {}
for arg = first, #ARGV, 3 do
  local name, at = ARGV[arg], 5 + 2 * (arg - first) / 3
  local box = boxes[name] or taker_of(KEYS[at], KEYS[at + 1], ARGV[4], name)
  if not box then return {2, name} end
  boxes[name] = box
  local refused = refusal_of(box, tonumber(ARGV[arg + 1]), #ARGV[arg + 2])
  if refused then return {refused, name} end
end

for arg = first, #ARGV, 3 do give(ARGV[4], boxes[ARGV[arg]], ARGV[arg + 1], ARGV[arg + 2]) end
for _, box in pairs(boxes) do keep_counts(box) end
local held = held_bytes(KEYS[2], KEYS[3], 0, 0) - weight(letter[2])
redis.call('XDEL', KEYS[2], letter[1])
settle(KEYS[2], KEYS[3], held)
local now = redis.call('TIME')
for arg = 7, first - 1, 4 do
  redis.call('HSET', KEYS[4], ARGV[arg], lay_in_place(KEYS[2], ARGV[4], letter, {
    f = ARGV[arg + 3], row = '0', acked = '', to = ARGV[arg], shard = ARGV[arg + 1], exclusive = ARGV[arg + 2],
    born = meta[2] or '0', entry = now[1] .. string.format('%03d-0', now[2] / 1000)}))
end
if ARGV[5] ~= '' then lay_in_place(KEYS[2], ARGV[4], letter, {f = ARGV[5], row = '0', acked = ''}) end
redis.call('HSET', KEYS[3], 'call', ARGV[2])
return {1, ''}
