#!lua flags=allow-oom
-- Renew a messager's leases.
--
-- KEYS[1] sender  hash, expires when its messager has long been gone (a named one never does)
-- KEYS[2] meta    hash: see id_ceiling.lua
-- KEYS[3] state   hash: epoch   KEYS[4] lease: see renew_lease.lua   both only where it reads a mailbox
-- ARGV[1] the sender's keep in ms, or 0  [2] the reader's epoch  [3] lease in ms; 0: it is over now
-- Returns the time in ms; 0: the mailbox was removed; -1: a newer reader holds it; -2: it was restored as it was before
-- our epoch
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if #KEYS == 2 then return milliseconds() end
local epoch = redis.call('HGET', KEYS[3], 'epoch')
if not epoch then return 0 end
if epoch ~= ARGV[2] then return tonumber(epoch) > tonumber(ARGV[2]) and -1 or -2 end
local now = lift_ceiling(KEYS[2], tonumber(ARGV[3]))
if ARGV[3] == '0' then redis.call('DEL', KEYS[4]) else renew_lease(KEYS[4], ARGV[3], now) end
return now
