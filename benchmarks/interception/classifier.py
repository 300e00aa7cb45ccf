"""A spam classifier behind HTTP in a process of its own (naive Bayes over words), and its client.

python -m benchmarks.interception.classifier FILE SEED     prints its port, and serves until its stdin is closed
"""

import asyncio
import gzip
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ray_messaging.message import Message

HOST = "127.0.0.1"
_WORD = re.compile(r"[a-z]+|\d+|[£$!]")


class Text(NamedTuple):
    """One message of the collection."""

    text: str
    spam: bool


def read_collection(path: Path) -> list[Text]:
    """Read lines of label TAB text, gzipped."""
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    return [Text(text, label == "spam") for label, tab, text in (line.partition("\t") for line in lines) if tab]


def training_rows(count: int, seed: int) -> set[int]:
    """Choose the half that the classifier learns from."""
    return set(random.Random(seed).sample(range(count), count // 2))


def words(text: str) -> list[str]:
    """Return the words of a text; of a number, how long it is."""
    return [f"#{len(word)}" if word.isdigit() else word for word in _WORD.findall(text.lower())]


class NaiveBayes:
    """A naive Bayes classifier over words: multinomial, each word counted once more."""

    def __init__(self, texts: Sequence[Text]) -> None:
        seen = {True: Counter[str](), False: Counter[str]()}
        for text, spam in texts:
            seen[spam].update(words(text))
        known = seen[True] | seen[False]
        spoken = {spam: counts.total() + len(known) for spam, counts in seen.items()}
        spams = sum(text.spam for text in texts)
        self._prior = math.log(spams / (len(texts) - spams))
        self._weights = {
            word: math.log((seen[True][word] + 1) / spoken[True] * spoken[False] / (seen[False][word] + 1))
            for word in known
        }

    def score(self, text: str) -> float:
        """Return the log odds that a text is spam."""
        return self._prior + sum(self._weights.get(word, 0.0) for word in words(text))


async def _serve(model: NaiveBayes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                body = await _read_body(reader)
                score = model.score(body.decode())
                answer = json.dumps({"spam": score > 0, "score": round(score, 3)}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
        except asyncio.IncompleteReadError:
            pass  # the asker has gone
        finally:
            writer.close()

    server = await asyncio.start_server(talk, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


async def _read_body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    if length is None:
        raise ValueError(f"no content-length in {head!r}")
    return await reader.readexactly(int(length[1]))


@contextmanager
def serving(path: Path, seed: int) -> Iterator[int]:
    """Serve the classifier in a process of its own; give its port."""
    command = [sys.executable, "-m", "benchmarks.interception.classifier", str(path), str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.communicate()  # closes its stdin


class AskClassifier:
    """Ask the classifier about a message's content; be a moderator's callable."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __call__(self, message: Message) -> bool | str:
        """Return True for ham, the reason for spam."""
        body = message.payload["content"].encode()
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(b"POST / HTTP/1.1\r\nhost: classifier\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            answer = json.loads(await _read_body(reader))
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer))
        return f"spam, log odds {answer['score']}" if answer["spam"] else True


if __name__ == "__main__":
    collection = read_collection(Path(sys.argv[1]))
    chosen = training_rows(len(collection), int(sys.argv[2]))
    asyncio.run(_serve(NaiveBayes([collection[row] for row in sorted(chosen)])))
