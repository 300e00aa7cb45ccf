-- Shared by send_one_frame.lua, send.lua and returned_frames.lua: the limits of a mailbox.
--
-- size is the frame's; messages, bytes, unlogged and unlogged_bytes are the mailbox's with the frame in it; the last two
-- are 0 while no event log is registered.
-- Returns 0: the frame fits; 5: it is larger than the mailbox; 2: the mailbox is full; 6: the event log is behind
local function limit_fate(size, max_rows, max_bytes, messages, bytes, unlogged, unlogged_bytes)
  if size > max_bytes then return 5 end
  if messages > max_rows or bytes > max_bytes then return 2 end
  if unlogged > max_rows or unlogged_bytes > max_bytes then return 6 end
  return 0
end
