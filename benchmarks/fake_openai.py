"""A fake server of a language model: OpenAI's chat completions, in a process of its own, with continuous batching.

    python -m benchmarks.fake_openai --slots 64 --output-ms 10 --refuse 0.1

It prints its address, which is a `base_url`. A request waits for one of the slots, and then takes a time per token of
its prompt that is not in the prefix cache, and per token of its answer. A token is a word. Answers are made of the
prompt and the seed alone, so they do not depend on the order of requests; where a request has a JSON schema, they fit
it. `GET /counts` says what was answered, and how many of the questions were
different, and `POST /die` with {"seconds": 1} lets the server be gone for a while. A
request with the Idempotency-Key of an earlier one gets the same answer, and is not counted again.
"""

import argparse
import asyncio
import json
import math
import subprocess
import sys
import time
import urllib.request
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

_BLOCK = 16  # tokens that the prefix cache has or has not together
_ANSWERS = 100_000  # the answers that are kept by their Idempotency-Key
_WORDS = (
    *("the", "town", "talks", "of", "rain", "and", "bread", "while", "a", "cat"),
    *("sleeps", "near", "some", "quiet", "old", "mill", "under", "tall", "green", "trees"),
)
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}


class Plan(NamedTuple):
    """How the server behaves. `refuse` and `unfit` are shares: of requests refused by 429, of answers in no form."""

    slots: int = 64
    queue: int = 100_000  # requests beyond so many that wait are refused by 429
    input_ms: float = 0.0
    output_ms: float = 0.0
    cache_tokens: int = 100_000
    median_tokens: int = 40  # answers have a lognormal length
    sigma: float = 0.6
    refuse: float = 0.0
    retry_after_s: float = 0.0
    unfit: float = 0.0
    seed: int = 0


class FakeServer:
    """The server in one event loop. `counts` has what it has answered: requests, tokens, refusals, repetitions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self._asked = set[bytes]()  # digests of the questions that were answered
        self._slots = asyncio.Semaphore(plan.slots)
        self._waiting = 0
        self._chance = Random(plan.seed)
        self._cache: OrderedDict[bytes, None] = OrderedDict()  # digests of prefixes, the latest used last
        self._answers: OrderedDict[str, asyncio.Task[dict[str, Any]]] = OrderedDict()
        self._clients: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._later: asyncio.Task[None] | None = None  # which listens again
        self._under_way: set[asyncio.Task[dict[str, Any]]] = set()

    async def listen(self, port: int) -> int:
        """Begin to listen, and return the port."""
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", port, backlog=1000)
        return self._server.sockets[0].getsockname()[1]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        self._clients.add(writer)
        # At the program's end connections that are open are cancelled; asyncio 3.11 prints an error for each of these.
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ", 2)
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, answer, more = await self._answered(method, path, headers, json.loads(body or b"{}"))
                data = json.dumps(answer).encode()
                lines = [f"HTTP/1.1 {status} {_REASONS[status]}", "content-type: application/json", *more]
                writer.write("\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode() + data)
                await writer.drain()
        self._clients.discard(writer)
        writer.close()

    async def _answered(
        self, method: str, path: str, headers: dict[str, str], asked: dict[str, Any]
    ) -> tuple[int, dict[str, Any], list[str]]:
        if (method, path) == ("GET", "/counts"):
            return 200, dict(self.counts), []
        if (method, path) == ("POST", "/die"):
            asyncio.get_running_loop().call_soon(self._die, float(asked["seconds"]))
            return 200, {}, []
        if (method, path) != ("POST", "/v1/chat/completions"):
            return 404, {"error": {"message": f"there is no {path}"}}, []
        self.counts["requests"] += 1
        if self._waiting >= self.plan.queue or self._chance.random() < self.plan.refuse:
            self.counts["refused"] += 1
            return 429, {"error": {"message": "too many requests"}}, [f"retry-after: {self.plan.retry_after_s}"]
        key = headers.get("idempotency-key", "")
        if key and key in self._answers:
            self.counts["repeated"] += 1
        task = self._answers.get(key) if key else None
        if task is None:
            task = asyncio.create_task(self._complete(asked))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            if key:
                self._answers[key] = task
                if len(self._answers) > _ANSWERS:
                    self._answers.popitem(last=False)
        return 200, await asyncio.shield(task), []

    async def _complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Make an answer, in the time that it takes, and count it."""
        prompt = [word for each in asked["messages"] for word in [each["role"], *str(each["content"]).split()]]
        content = json.dumps([asked["messages"], asked.get("seed"), asked.get("model"), self.plan.seed])
        chance = Random(blake2b(content.encode()).digest())
        length = max(1, round(chance.lognormvariate(math.log(self.plan.median_tokens), self.plan.sigma)))
        length = min(length, asked.get("max_completion_tokens") or asked.get("max_tokens") or length)
        self._waiting += 1
        async with self._slots:
            self._waiting -= 1
            cached = self._in_cache(prompt)
            new = len(prompt) - cached
            began = time.perf_counter()
            if took_ms := new * self.plan.input_ms + length * self.plan.output_ms:
                await asyncio.sleep(took_ms / 1000)
            self.counts["busy_us"] += round((time.perf_counter() - began) * 1e6)
        text = _answer(asked.get("response_format"), prompt, length, chance)
        if chance.random() < self.plan.unfit:
            self.counts["unfit"] += 1
            text = "I would rather not say { that"
        self._asked.add(blake2b(content.encode(), digest_size=16).digest())
        self.counts["different"] = len(self._asked)
        self.counts += Counter(answered=1, prompt_tokens=len(prompt), completion_tokens=length, cached_tokens=cached)
        return {
            "id": f"fake-{self.counts['answered']}",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": length,
                "total_tokens": len(prompt) + length,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }

    def _in_cache(self, prompt: list[str]) -> int:
        """Return how many tokens at the beginning of a prompt are in the cache, which then has the whole prompt."""
        digest, found, known = b"", 0, True
        for at in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
            digest = blake2b(digest + " ".join(prompt[at : at + _BLOCK]).encode(), digest_size=16).digest()
            known = known and digest in self._cache
            found += _BLOCK if known else 0
            self._cache[digest] = None
            self._cache.move_to_end(digest)
        while len(self._cache) * _BLOCK > self.plan.cache_tokens:
            self._cache.popitem(last=False)
        return found

    def _die(self, seconds: float) -> None:
        """Drop all connections and all work, and listen again later, at the same port."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        self._server.close()
        for client in [*self._clients]:
            client.transport.abort()
        self._answers = OrderedDict((key, task) for key, task in self._answers.items() if task.done())
        for task in self._under_way:
            task.cancel()
        self._cache.clear()
        self.counts["deaths"] += 1
        self._later = asyncio.create_task(self._again(seconds, port))

    async def _again(self, seconds: float, port: int) -> None:
        await asyncio.sleep(seconds)
        await self.listen(port)


def _answer(form: dict[str, Any] | None, prompt: list[str], length: int, chance: Random) -> str:
    if form is None or form["type"] != "json_schema":
        return " ".join(chance.choices(_WORDS, k=length))
    schema = form["json_schema"]["schema"]
    return json.dumps(_value(schema, schema.get("$defs", {}), prompt, chance))


def _value(schema: dict[str, Any], known: dict[str, Any], prompt: list[str], chance: Random) -> Any:
    """Return a value that fits a schema. Of several choices it is the one that the prompt names most often."""
    if "$ref" in schema:
        return _value(known[schema["$ref"].rpartition("/")[2]], known, prompt, chance)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        words = Counter(word.strip(".,:;?!'\"").lower() for word in prompt)
        return max(schema["enum"], key=lambda each: (words[str(each).lower()], chance.random()))
    if "anyOf" in schema:
        return _value(schema["anyOf"][0], known, prompt, chance)
    match schema.get("type"):
        case "object":
            parts = schema.get("properties", {})
            return {name: _value(part, known, prompt, chance) for name, part in parts.items()}
        case "array":
            return [_value(schema.get("items", {}), known, prompt, chance) for _ in range(2)]
        case "integer":
            return chance.randint(int(schema.get("minimum", 0)), int(schema.get("maximum", 10)))
        case "number":
            return round(chance.uniform(schema.get("minimum", 0), schema.get("maximum", 1)), 3)
        case "boolean":
            return chance.random() < 0.5
    return " ".join(chance.choices(_WORDS, k=5))


class Served(NamedTuple):
    """A server in a process of its own."""

    base_url: str

    def counts(self) -> Counter[str]:
        """Return what the server has answered."""
        return Counter(self._post("/counts", None))

    def die(self, seconds: float) -> None:
        """Let the server drop all connections, and be gone for some seconds."""
        self._post("/die", json.dumps({"seconds": seconds}).encode())

    def _post(self, path: str, data: bytes | None) -> Any:
        with urllib.request.urlopen(self.base_url.removesuffix("/v1") + path, data, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def served(**plan: float) -> Iterator[Served]:
    """Run a server in a process of its own, which ends with this block, or with this process."""
    given = [part for name, value in plan.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "benchmarks.fake_openai", "--until-eof", *given]
    here = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Served(process.stdout.readline().strip())
        finally:
            process.stdin.close()


async def _serve(plan: Plan, port: int, *, until_eof: bool) -> None:
    server, ended = FakeServer(plan), asyncio.Event()
    port = await server.listen(port)
    if until_eof:
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await ended.wait()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--until-eof", action="store_true", help="end when nobody holds the standard input any more")
    for name, default in Plan._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = vars(parser.parse_args())
    port, until_eof = given.pop("port"), given.pop("until_eof")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(Plan(**given), port, until_eof=until_eof))


if __name__ == "__main__":
    main()
