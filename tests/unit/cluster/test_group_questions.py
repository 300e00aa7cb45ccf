"""The questions of a group's handles, as the group's host keeps them."""

import asyncio
from types import SimpleNamespace

from ray_messaging.cluster.actors import group_host
from ray_messaging.cluster.actors.group_host import _MOST_KEPT, GroupQuestions


async def test_few_answers_are_kept_after_many_questions_at_once(monkeypatch):
    async def ask_batch(*_arguments):
        await asyncio.sleep(0)
        return "an answer"

    monkeypatch.setattr(group_host, "decode", bytes)
    questions = GroupQuestions(SimpleNamespace(conversation=SimpleNamespace(ask_batch=ask_batch)))
    await asyncio.gather(*(questions.ask(str(number), b"", None) for number in range(100)))
    await asyncio.sleep(0)
    assert len(questions._calls) == _MOST_KEPT
