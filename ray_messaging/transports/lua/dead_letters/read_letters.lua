#!lua flags=no-writes
-- Return dead letters in their order: so many, and fewer where they are large.
--
-- KEYS[1] dead  stream: see dead_letter_retention.lua
-- ARGV[1] id before the first one, or 0-0  [2] how many  [3] bytes of frames, past which no further one is added
-- Returns {{id, {field, value...}}...}
local found, nbytes, after = {}, 0, ARGV[1]
while #found < tonumber(ARGV[2]) and nbytes < tonumber(ARGV[3]) do
  local letter = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', 1)[1]
  if not letter then break end
  found[#found + 1], after = letter, letter[1]
  for i = 2, #letter[2], 2 do nbytes = nbytes + #letter[2][i] end
end
return found
