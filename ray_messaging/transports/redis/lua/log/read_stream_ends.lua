#!lua flags=no-writes
-- Return the id of the last entry that each stream had, trimmed or not; 0-0 where there was none.
--
-- KEYS two for each stream: while its mailbox is there, and once it ended
local ends = {}
for i, key in ipairs(KEYS) do
  local place = math.ceil(i / 2)
  ends[place] = ends[place] or '0-0'
  local facts, known = redis.pcall('XINFO', 'STREAM', key), {}
  for at = 1, facts.err and 0 or #facts, 2 do known[facts[at]] = facts[at + 1] end
  ends[place] = known['last-generated-id'] or ends[place]
  -- Nothing was written since raise_entry_ids.lua raised it. What was trimmed the log has.
  if known['max-deleted-entry-id'] == ends[place] then
    ends[place] = known['last-entry'] and known['last-entry'][1] or '0-0'
  end
end
return ends
