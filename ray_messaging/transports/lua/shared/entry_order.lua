-- Shared by commit.lua, note_written.lua and dead_letter_retention.lua: the lower one of two entry ids, which do not compare as text.
local function lower(a, b)
  local a_ms, a_n = a:match('^(%d+)-(%d+)$')
  local b_ms, b_n = b:match('^(%d+)-(%d+)$')
  a_ms, a_n, b_ms, b_n = tonumber(a_ms), tonumber(a_n), tonumber(b_ms), tonumber(b_n)
  if a_ms < b_ms or (a_ms == b_ms and a_n < b_n) then return a end
  return b
end
