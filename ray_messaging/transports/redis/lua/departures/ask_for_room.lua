#!lua flags=no-writes
-- Tell whether a mailbox takes the frames that come with agents from another server.
--
-- KEYS[1] state and [2] lease of the mailbox: see take_mailbox.lua
-- ARGV[1] prefix of this experiment's keys  [2] mailbox  [3...] rows, bytes of each frame
-- Returns a number of Released, 0: it takes them
local box = target_of(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
if not box then return 6 end
for arg = 3, #ARGV, 2 do
  local refused = refusal(box, tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]))
  if refused then return refused end
end
return 0
