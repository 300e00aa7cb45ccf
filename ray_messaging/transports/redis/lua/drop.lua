#!lua flags=allow-oom
-- Delete dead letters. Runs when memory is full, as it frees some.
--
-- KEYS[1] dead, KEYS[2] state::dead: see bury.lua
-- ARGV[1] name of this call: a repeated one finds its answer  [2...] ids
-- Returns how many were there
local now = redis.call('HMGET', KEYS[2], 'call', 'answer')
if now[1] == ARGV[1] then return tonumber(now[2]) end
local dropped = 0
for i = 2, #ARGV do
  local letter = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  if letter then
    release(KEYS[1], KEYS[2], letter)
    dropped = dropped + 1
  end
end
redis.call('HSET', KEYS[2], 'call', ARGV[1], 'answer', dropped)
return dropped
