-- Write large frames, each for another mailbox: see plain_frame.lua. Lua copies and hashes all that comes into a script, and
-- copies it once more for XADD, which takes as long as everything else that is done for a large frame. So this script
-- comes twice in a transaction, with an XADD for each frame between:
--
-- MULTI, large_frames 'open', XADD <prefix>open:<mailbox> NOMKSTREAM * f <frame> ..., large_frames 'close', EXEC
--
-- 'open' gives the stream of a mailbox that takes its frame the name open:<mailbox>, and 'close' takes it back. To a
-- stream that was not opened, XADD adds nothing. Nobody sees the name, as nothing comes between the commands of a
-- transaction. It must be one script: the server may forget scripts, one by one.
--
-- KEYS, ARGV[1...5]  as of send.lua
-- ARGV[6] 'open' or 'close'   ARGV[...] per frame: mailbox, seq, rows, size of the frame, -1, 0
-- Returns -1: the user lacks a right that this takes, and nothing was done
local opens, key = ARGV[6] == 'open', 3
if opens then
  -- Without MULTI each command would come by itself, and the connection may be lost between two of them.
  local any = ARGV[5] .. 'open:'
  for _, command in ipairs({{'MULTI'}, {'EXEC'}, {'RENAME', any, any}, {'XADD', any, '*', 'f', ''},
                            {'XGROUP', 'CREATE', any, 'last', '$'}, {'XINFO', 'GROUPS', any},
                            {'XGROUP', 'DESTROY', any, 'last'}}) do
    if not redis.acl_check_cmd(unpack(command)) then return -1 end
  end
end
for at = 7, #ARGV, 6 do
  local state, mailbox, seq = KEYS[key], ARGV[at], ARGV[at + 1]
  local open = ARGV[5] .. 'open:' .. mailbox
  if opens then
    local box = room_for(state, KEYS[key + 1], mailbox, seq, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]))
    if box and redis.call('EXISTS', box.stream) == 1 then  -- a new mailbox has none yet: send.lua makes it
      count_frame(state, mailbox, seq, box)
      redis.call('RENAME', box.stream, open)
    end
  elseif redis.call('EXISTS', open) == 1 then
    local stream = ARGV[5] .. 'mailbox:' .. mailbox .. ':' .. redis.call('HGET', state, 'born')
    redis.call('RENAME', open, stream)
    -- The id of its last entry: all other commands that tell it bring the entry along.
    redis.call('XGROUP', 'CREATE', stream, 'last', '$')
    local group = redis.call('XINFO', 'GROUPS', stream)[1]
    redis.call('XGROUP', 'DESTROY', stream, 'last')
    for at = 1, #group, 2 do
      if group[at] == 'last-delivered-id' then redis.call('HSET', state, 'last', group[at + 1]) end
    end
  end
  key = key + 2
end
return 0
