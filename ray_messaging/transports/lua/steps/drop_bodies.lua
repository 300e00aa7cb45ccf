#!lua flags=allow-oom
-- Delete the bodies of large frames in boxes that are dropped. Allowed when memory is full, because it frees some.
--
-- KEYS[1] bodies  set: the steps of the boxes; bodies:<step> is a hash: name of a frame -> its bytes
-- ARGV[1] last step that is dropped
-- Returns how many steps had some
local gone = 0
for _, step in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if tonumber(step) <= tonumber(ARGV[1]) then
    redis.call('UNLINK', KEYS[1] .. ':' .. step)
    redis.call('SREM', KEYS[1], step)
    gone = gone + 1
  end
end
return gone
