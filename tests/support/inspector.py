"""The inspector in a process of its own, and a browser that looks at it."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from io import BytesIO

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from support.servers import find_binary

PATIENCE_S = 60
SIZE = {"width": 1280, "height": 800}


@contextmanager
def inspector(target, *options, **process):
    """Run `ray-messaging ui` until the end of the block; give its URL. `process` is of Popen, as its folder."""
    command = [sys.executable, "-m", "ray_messaging.cli", "ui", str(target), "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **process)
    try:
        line = process.stdout.readline()
        assert line, f"the inspector ended with exit code {process.wait()}"
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.stdout.close()


class Browser:
    """Chromium with one page. It keeps the errors there, and each request to another host."""

    def __init__(self, page):
        self.page = page
        self.errors = []
        self.base = ""
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("request", self._look_at)
        page.on("dialog", self._dismiss)

    def _look_at(self, request):
        if not request.url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:")):
            self.errors.append(f"asked {request.url}")

    def _dismiss(self, dialog):
        self.errors.append(f"a script ran: {dialog.message}")
        dialog.dismiss()

    def open(self, url):
        self.page.goto(url)

    def go(self, path):
        """Open a page of the inspector at `base`."""
        self.page.goto(self.base.rstrip("/") + path)

    def element(self, mark):
        return self.page.locator(f"[data-mark~={mark}]:visible")

    def sees(self, mark, text):
        expect(self.element(mark)).to_contain_text(text)

    @contextmanager
    def window(self, **options):
        """Give another browser beside this one, with cookies of its own."""
        context = self.page.context.browser.new_context(viewport=SIZE, **options)
        try:
            found = Browser(context.new_page())
            yield found
            assert not found.errors, found.errors
        finally:
            context.close()

    def text(self, mark):
        return self.element(mark).inner_text()

    def number(self, mark):
        """Return a figure of the page; 0 while it is unknown."""
        found = self.text(mark).replace(",", "")
        return float(found) if found[:1].isdigit() else 0.0


def picture(seen, name):
    """Keep a picture of the page, for the docs, where RAY_MESSAGING_PICTURES names a folder."""
    if folder := os.environ.get("RAY_MESSAGING_PICTURES"):
        seen.page.mouse.move(0, 0)
        shot = Image.open(BytesIO(seen.page.screenshot())).convert("RGB")
        shot.quantize(200).save(f"{folder}/{name}.png", optimize=True)  # a third of the size


@contextmanager
def browser():
    """Start Debian's Chromium. Raises MissingServer where it is not on PATH."""
    binary = find_binary("chromium")
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            found = Browser(started.new_page(viewport=SIZE))
            yield found
            assert not found.errors, found.errors
        finally:
            started.close()
