#!lua flags=allow-oom
-- Take away a letter that is in a mailbox of another shard, or let one that was given up be a letter as others are, with a new id.
-- Allowed when memory is full, because it frees some.
--
-- KEYS[1] dead, KEYS[2] state::dead: see dead_letter_retention.lua   KEYS[3] forwards: see lay_in_place.lua
-- ARGV[1] name of this call: a repeated one finds its answer  [2] id of the letter  [3] the mailbox  [4] 1: it is there
-- ARGV[5] prefix of this experiment's keys  [6] what it weighs
-- Returns its id as it was, or the new one; "": it was done before
local now = redis.call('HMGET', KEYS[2], 'call', 'answer')
if now[1] == ARGV[1] then return now[2] end
local letter, answer = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1], ''
local addressed = redis.call('HGET', KEYS[3], ARGV[3]) == ARGV[2]
if letter then
  local held = held_bytes(KEYS[1], KEYS[2], 0, 0) - weight(letter[2])
  redis.call('XDEL', KEYS[1], letter[1])
  settle(KEYS[1], KEYS[2], held)
  answer = ARGV[4] == '1' and ARGV[2] or lay_in_place(KEYS[1], ARGV[5], letter, {shard = false})
elseif addressed and ARGV[4] == '1' then  -- the limit took it meanwhile, and it is not lost
  local lost = redis.call('HMGET', KEYS[2], 'dropped', 'dropped_bytes')
  redis.call('HSET', KEYS[2], 'dropped', string.format('%.0f', math.max(0, (natural(lost[1]) or 0) - 1)),
             'dropped_bytes', string.format('%.0f', math.max(0, (natural(lost[2]) or 0) - tonumber(ARGV[6]))))
  answer = ARGV[2]
end
if addressed then redis.call('HDEL', KEYS[3], ARGV[3]) end
redis.call('HSET', KEYS[2], 'call', ARGV[1], 'answer', answer)
return answer
