#!lua flags=allow-oom
-- Renew a messager's leases.
--
-- KEYS[1] sender  hash, expires when its messager has long been gone (a named one never does)
-- KEYS[2] state   hash: epoch   KEYS[3] lease   both only where it reads a mailbox
-- ARGV[1] the sender's keep in ms, or 0  [2] the reader's epoch  [3] lease in ms
-- Returns 1; 0: the mailbox was removed; -1: a newer reader holds it; -2: it was restored as it was before our epoch
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
if #KEYS == 1 then return 1 end
local epoch = redis.call('HGET', KEYS[2], 'epoch')
if not epoch then return 0 end
if epoch ~= ARGV[2] then return tonumber(epoch) > tonumber(ARGV[2]) and -1 or -2 end
redis.call('SET', KEYS[3], epoch, 'PX', ARGV[3])
return 1
