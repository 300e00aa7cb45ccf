#!lua flags=allow-oom
-- Delete a sender's state, or its sequence numbers for removed mailboxes. Allowed when memory is full: it frees some.
--
-- KEYS[1] sender  hash: epoch, s:<mailbox> = last seq (see send.lua)
-- ARGV[1] the caller's epoch  [2] ms after which the sender itself goes, as it sends no more; -1: only fields go
-- ARGV[3...] these fields, up to 1,000
-- Returns 1, or 0 where somebody newer sends under this name, or it is gone
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if ARGV[2] == '-1' then redis.call('HDEL', KEYS[1], unpack(ARGV, 3)) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
