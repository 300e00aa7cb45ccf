-- The beginning of relay_frames.lua: how a frame that was written for a mailbox that is gone by now becomes a dead letter, as
-- those that wait in a mailbox when it is removed do (see dead_letter_retention.lua).
local function bury_waiting(mailbox, frame)
  if frame == '' then return end
  local now = redis.call('TIME')
  lay(ARGV[5] .. 'dead', ARGV[5], ARGV[2], {'mailbox', mailbox, 'entry', now[1] .. string.format('%03d-0', now[2] / 1000), 'row', '0',
      'reason', 'the mailbox was removed', 'born', redis.call('HGET', KEYS[1], 'born') or '0', 'exclusive', '0', 'acked', '',
      'f', frame})
end
