"""The cache between pages and source."""

import asyncio
import threading

import pytest

from ray_messaging.inspector.web.answer_cache import AnswerCache


class Slow:
    """A question that is answered when the test lets it."""

    def __init__(self):
        self.let = threading.Event()
        self.asked = 0

    def __call__(self):
        self.asked += 1
        assert self.let.wait(30)
        return self.asked


@pytest.fixture
async def cache():
    found = AnswerCache(None)
    yield found
    await found.close()


async def test_a_question_of_many_pages_is_asked_once_and_the_loop_goes_on(cache):
    slow = Slow()
    pages = [asyncio.create_task(cache.shared("x", slow, 60)) for _ in range(20)]
    await asyncio.sleep(0)  # the loop is free
    slow.let.set()
    assert set(await asyncio.gather(*pages)) == {1}
    assert await cache.shared("x", slow, 60) == 1
    assert slow.asked == 1


async def test_an_answer_that_is_too_old_is_asked_for_again_and_a_change_makes_all_old(cache):
    slow = Slow()
    slow.let.set()
    assert await cache.shared("x", slow, 60) == 1
    assert await cache.change(str, 7) == "7"
    assert await cache.shared("x", slow, 60) == 2


async def test_a_page_that_closes_takes_nobodys_answer_along(cache):
    slow = Slow()
    closing, staying = (asyncio.create_task(cache.shared("x", slow, 60)) for _ in range(2))
    await asyncio.sleep(0)
    closing.cancel()
    slow.let.set()
    assert await staying == 1


async def test_an_error_is_told_and_the_question_is_asked_again(cache):
    with pytest.raises(ZeroDivisionError):
        await cache.shared("x", lambda: 1 // 0, 60)
    assert await cache.shared("x", lambda: 5, 60) == 5
