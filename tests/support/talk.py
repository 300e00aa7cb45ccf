"""Groups of a running experiment whose agents write to each other all the time."""

import random
import threading

NAMES = ("north", "south", "east", "west", "harbour", "market", "school")
SAID = (
    "Did you hear about the harbour?",
    "I would rather stay at home tonight.",
    "The market opens at nine; come early if you want fish.",
    "No.",
)
_PAUSE_S = 0.1


class Talk:
    """The groups of a town, ten agents each; a thread sends for them until the end. Those of `school` answer."""

    def __init__(self, messaging):
        self.messaging = messaging
        self.groups = messaging.create_groups({name: range(10 * n, 10 * n + 10) for n, name in enumerate(NAMES)})
        self._end = threading.Event()
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._speak, self._answer)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _speak(self):
        chance = random.Random(1)
        while not self._end.wait(_PAUSE_S):
            for place, group in enumerate([*self.groups.values()]):
                many = chance.randrange(2, 6) * (1 + place % 3)
                own = [chance.randrange(10 * place, 10 * place + 10) for _ in range(many)]
                group.send_columns(own, [chance.randrange(70) for _ in own], {"content": chance.choice(SAID)})

    def _answer(self):
        school = self.groups["school"]
        while not self._end.is_set():
            for message in school.fetch(timeout=0.2):
                if message.expects_answer:
                    school.reply(message, {"content": "gladly"})
        school.ack()
