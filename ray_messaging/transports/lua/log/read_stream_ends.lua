#!lua flags=no-writes
-- Return the id of the last entry that each stream has; 0-0 where it has none. What was trimmed the log had.
--
-- KEYS two for each stream: while its mailbox is there, and once it ended
local ends = {}
for i, key in ipairs(KEYS) do
  local place = math.ceil(i / 2)
  local last = redis.pcall('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  ends[place] = last and last[1] or ends[place] or '0-0'
end
return ends
