#!lua flags=no-writes
-- Return the id of the last entry that each stream had, trimmed or not; 0-0 where there was none.
--
-- KEYS two for each stream: while its mailbox is there, and once it ended
local ends = {}
for i, key in ipairs(KEYS) do
  local place = math.ceil(i / 2)
  ends[place] = ends[place] or '0-0'
  local facts = redis.pcall('XINFO', 'STREAM', key)
  for at = 1, facts.err and 0 or #facts, 2 do
    if facts[at] == 'last-generated-id' then ends[place] = facts[at + 1] end
  end
end
return ends
