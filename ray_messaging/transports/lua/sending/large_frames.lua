-- Write large frames, each for another mailbox (see plain_frame.lua): all of them or none. Lua copies and hashes all that
-- comes into a script, and copies it once more for XADD, which takes as long as everything else that is done for a large
-- frame. So this script comes twice in a transaction, with an XADD for each frame between:
--
-- MULTI, large_frames 'open', XADD <prefix>open:<mailbox> NOMKSTREAM * f <frame> ..., large_frames 'close', EXEC
--
-- Where all mailboxes take their frames, 'open' gives their streams the names open:<mailbox>, and 'close' takes these
-- back. To a stream that was not opened, XADD adds nothing. No client sees the names, as nothing comes between the
-- commands of a transaction. It must be one script: the server may forget scripts, one by one.
--
-- KEYS, ARGV[1...5]  as of send.lua
-- ARGV[6] 'open' or 'close'   ARGV[...] per frame: mailbox, seq, rows, size of the frame, -1, 0
-- Returns 0: done  1: nothing was done, send.lua tells why  2: nothing was done, as the user lacks a right
local GROUP = 'ray_messaging:last'
local frames = {}
for at = 7, #ARGV, 6 do
  local key = 3 + 2 * #frames
  frames[#frames + 1] = {state = KEYS[key], lease = KEYS[key + 1], mailbox = ARGV[at], seq = ARGV[at + 1],
                         rows = tonumber(ARGV[at + 2]), size = tonumber(ARGV[at + 3]), open = ARGV[5] .. 'open:' .. ARGV[at]}
end

-- Without MULTI each command would come by itself, and the connection may be lost between two of them.
local function may_write(stream, open)
  for _, command in ipairs({{'MULTI'}, {'EXEC'}, {'RENAME', stream, open}, {'RENAME', open, stream},
                            {'XADD', open, '*', 'f', ''}, {'XGROUP', 'CREATE', stream, GROUP, '$'},
                            {'XINFO', 'GROUPS', stream}, {'XGROUP', 'DESTROY', stream, GROUP}}) do
    if not redis.acl_check_cmd(unpack(command)) then return false end
  end
  return true
end

-- The id of a stream's last entry. Commands that tell it bring the entry along, but for those of consumer groups.
local function last_id(stream)
  redis.call('XGROUP', 'CREATE', stream, GROUP, '$')
  local groups, last = redis.call('XINFO', 'GROUPS', stream), nil
  redis.call('XGROUP', 'DESTROY', stream, GROUP)
  for _, group in ipairs(groups) do
    local fields = {}
    for at = 1, #group, 2 do fields[group[at]] = group[at + 1] end
    if fields['name'] == GROUP then last = fields['last-delivered-id'] end
  end
  return last
end

if ARGV[6] == 'open' then
  for _, frame in ipairs(frames) do
    frame.box = room_for(frame.state, frame.lease, frame.mailbox, frame.seq, frame.rows, frame.size)
    if not frame.box or redis.call('EXISTS', frame.box.stream) == 0 then return 1 end  -- a new mailbox has no stream yet
    if not may_write(frame.box.stream, frame.open) then return 2 end
  end
  for _, frame in ipairs(frames) do
    redis.call('RENAME', frame.box.stream, frame.open)
    count_frame(frame.state, frame.mailbox, frame.seq, frame.box, redis.call('HGET', frame.state, 'last') or '0-0')
  end
else
  local closed = {}
  for _, frame in ipairs(frames) do
    if redis.call('EXISTS', frame.open) == 1 then
      frame.stream = ARGV[5] .. 'mailbox:' .. frame.mailbox .. ':' .. redis.call('HGET', frame.state, 'born')
      redis.call('RENAME', frame.open, frame.stream)
      closed[#closed + 1] = frame
    end
  end
  for _, frame in ipairs(closed) do redis.call('HSET', frame.state, 'last', last_id(frame.stream)) end
end
return 0
