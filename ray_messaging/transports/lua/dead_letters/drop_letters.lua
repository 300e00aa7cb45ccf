#!lua flags=allow-oom
-- Delete dead letters, and count the others again if another client has written there. Allowed when memory is full,
-- because it frees some.
--
-- KEYS[1] dead, KEYS[2] state::dead: see dead_letter_retention.lua
-- ARGV[1] name of this call: a repeated one finds its answer  [2...] ids
-- Returns how many were there
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
