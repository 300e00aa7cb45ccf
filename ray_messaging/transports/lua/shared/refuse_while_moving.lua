-- The beginning of every script on a cluster: refuse while the experiment's slot is being moved key by key, before
-- anything has happened. A script that meets a key on its way fails there, and what it wrote before stays. In such a
-- slot no node serves a key that does not exist, so that one such key stands for all that a script may touch.
--
-- KEYS[1] any key of the experiment, for its prefix
do
  local absent = redis.pcall('EXISTS', KEYS[1]:match('^rm:{[^}]*}:') .. 'absent')
  if type(absent) == 'table' then
    if not absent.err:find('non local key', 1, true) then return absent end
    return redis.error_reply('TRYAGAIN the slot of this experiment is being moved to another node')
  end
end
