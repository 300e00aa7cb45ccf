"""The token's way through a real browser: from the URL into a cookie."""

import threading
from contextlib import contextmanager

from support.inspector import PATIENCE_S, browser

from ray_messaging.inspector.web.serve import Place, bind, serve


async def page(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
    await send({"type": "http.response.body", "body": b'<link rel="icon" href="data:,"><p data-mark=said>inside</p>'})


async def application(scope, receive, send):
    if scope["type"] != "lifespan":
        await page(scope, receive, send)
    else:
        for done in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{done}.complete"})


@contextmanager
def served(bound):
    """Serve a page in a thread."""
    ready, end = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=serve, args=(application, bound), kwargs={"on_ready": ready.set, "until": end}, daemon=True
    )
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield
    finally:
        end.set()
        thread.join(PATIENCE_S)


def test_the_token_is_exchanged_for_a_cookie_that_no_script_reads():
    bound = bind(Place(port=0), token=True)
    with bound.socket, browser() as seen, served(bound):
        seen.open(bound.url)
        seen.sees("said", "inside")
        assert seen.page.url == f"http://127.0.0.1:{bound.port}/"
        left = seen.page.evaluate("JSON.stringify(history.state) + document.referrer + document.cookie")
        assert bound.access.token not in left
        (cookie,) = seen.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        seen.page.reload()
        seen.sees("said", "inside")
