"""Processes that end at a call of one of several servers."""

from ray_messaging import MessagingError


class CutShortError(MessagingError):
    """The process ends here, as far as the servers can see."""


class Cut:
    """The end of a process before or after the n-th run of a script, at one shard (None: at any)."""

    def __init__(self, messager, script, *, nth=1, shard=None, after=False):
        self.left, self.after, self.hit = nth, after, False
        for number, each in enumerate(messager.engine.transport.shards):
            if shard is None or number == shard:
                self._arm(each.link, script)

    def _arm(self, link, script):
        whole = link.script

        async def run(name, *args, **options):
            if self.hit:
                raise CutShortError("cut short by the test")
            mine = name == script
            self.left -= mine
            if mine and not self.left:
                self.hit = True
                if self.after:
                    await whole(name, *args, **options)
                raise CutShortError("cut short by the test")
            return await whole(name, *args, **options)

        link.script = run
