"""How many sweets are in the jar? People at seats and agents guess, and tell each other what they think.

    python examples/seats.py --people 2 --host 0.0.0.0

The program prints a link for each person, and begins when all people are ready. With --scripted a function acts for the
people, and sends the requests that their browsers would send. Install the pages by pip install 'ray-messaging[ui]'.
"""

import argparse
import json
import re
import threading
from http.cookiejar import CookieJar
from urllib.request import HTTPCookieProcessor, Request, build_opener

from ray_messaging import Messaging, Steps

CONSENT = """In this game you guess with others how many sweets are in a jar.
What you write is kept for research, under a number and without your name. You may leave at any time."""


def guesser(me, inbox):
    """Move halfway to what others say, and tell all others. In a real study a language model would do this."""
    heard = [int(number) for message in inbox for number in re.findall(r"\d{1,6}", message.payload["content"])]
    if heard:
        me.state["guess"] += (sum(heard) / len(heard) - me.state["guess"]) / 2
    for other in me.neighbours:
        me.send(other, {"content": f"I think that there are {me.state['guess']:.0f}."})


def play(url):
    """Act as a person: agree, and in each step say the mean of what the others say."""
    link, token = url.split("?")
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    browser.open(f"{link}?{token}").close()

    def post(what, content):
        headers = {"content-type": "application/json"}
        browser.open(Request(link.replace("/seat/", f"/{what}/"), json.dumps(content).encode(), headers)).close()

    post("ready", {})
    seen = -1
    while True:
        with browser.open(f"{link.replace('/seat/', '/news/')}?seen={seen}") as answer:
            view = json.load(answer)
        seen, asked = view["version"], view["question"]
        if view["ended"]:
            return
        if asked is not None:
            said = [int(number) for each in asked["heard"] for number in re.findall(r"\d+", each["text"])] or [500]
            text = f"Perhaps {round(sum(said) / len(said))}?"
            post("answer", {"step": asked["step"], "messages": [{"to": asked["to"], "text": text}]})


def main():
    """Let people and agents guess; print what was said last, and how the guesses came together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8267)
    parser.add_argument(
        "--log-dir", default="seats-log", help="the folder of the log; a run that was interrupted goes on from it"
    )
    parser.add_argument("--scripted", action="store_true", help="let a program act for the people")
    plan = parser.parse_args()
    people, agents = range(plan.people), plan.people + 4
    graph = [(one, other) for one in range(agents) for other in range(agents) if one != other]
    started = Messaging.start(
        "seats", steps=Steps(seed=7, seat_timeout_s=120), log_dir=plan.log_dir, on_existing="resume",
    )  # fmt: skip
    with started as messaging:
        seats = [messaging.seat(person, consent=CONSENT, host=plan.host, port=plan.port) for person in people]
        players = [threading.Thread(target=play, args=(seat.url,)) for seat in seats if plan.scripted]
        for player in players:
            player.start()
        for seat in () if plan.scripted else seats:
            print(seat)
        for seat in seats:
            seat.wait_until_ready()
        result = messaging.run(
            guesser, agents=agents, until=plan.steps, graph=graph, progress=False,
            start=lambda me: {"guess": float(me.rng.integers(200, 2000))},
        )  # fmt: skip
        said = [json.loads(call["result"]) for call in messaging.log.calls().to_pylist()]
        print(sum(each["present"] for each in said), "of", len(said), "turns were taken by people")
        guesses = [result.states[agent]["guess"] for agent in range(plan.people, agents)]
        print("the guesses of the agents:", *[f"{guess:.0f}" for guess in guesses])
    for player in players:
        player.join()


if __name__ == "__main__":
    main()
