"""Ctrl-C ends background work at any moment."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_messaging.cluster.handles.own_loop import run_in_own_loop


def test_ctrl_c_while_the_work_is_handed_over_ends_it(monkeypatch):
    submit, begun = ThreadPoolExecutor.submit, threading.Event()

    async def wait_for_ever():
        begun.set()
        await asyncio.Event().wait()

    def interrupted(self, *args):
        submit(self, *args)
        begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_in_own_loop(wait_for_ever)
