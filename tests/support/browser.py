"""A real browser for the tests: Debian's Chromium, driven by Playwright.

It reaches only one server.
"""

import asyncio
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.support.debian import program

# The headless shell is Chromium without unneeded parts: a window costs a tenth of a second of CPU
# time instead of half a second.
SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Milliseconds that an action may take on a busy machine.
PATIENCE = 120_000
expect.set_options(timeout=PATIENCE)


def chromium() -> str:
    """Return the path of a Chromium, which is installed if it is missing.

    Raises RuntimeError if it cannot be installed.
    """
    return program(*NAMES, package=SHELL, tests="The tests of the pages")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser, which ends with the block."""
    # Chromium runs as root only without its sandbox. It loads only our pages, since it finds no
    # other host.
    hosts = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
    arguments = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules={hosts}"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield browser
        browser.close()


class SharedBrowser:
    """A browser that many tests borrow one after another.

    While the browser is open, Playwright's event loop counts as running in this thread. It is
    suspended between two loans, so that the loops of other tests can run.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)

    @contextmanager
    def lend(self) -> Iterator[Browser]:
        """Lend the browser for this block, and close the windows that are left open."""
        asyncio._set_running_loop(self._loop)
        try:
            yield self._browser
        finally:
            for context in self._browser.contexts:
                context.close()
            asyncio._set_running_loop(None)

    def take_back(self) -> None:
        """Let the browser be closed."""
        asyncio._set_running_loop(self._loop)


@contextmanager
def open_shared_browser() -> Iterator[SharedBrowser]:
    """Start a browser for many tests, which ends with the block."""
    with open_browser() as browser:
        shared = SharedBrowser(browser)
        yield shared
        shared.take_back()


@dataclass
class Visitor:
    """One browser window on one server.

    `told` holds the console's lines, `left` the requests to other hosts.
    """

    context: BrowserContext
    page: Page
    url: str
    told: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def see(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}")
        return self.page

    def require_quiet(self) -> None:
        """Check that the pages had no errors and sent no request to other hosts."""
        assert (self.told, self.left) == ([], []), f"{self.page.url}: {self.told} {self.left}"

    def faults(self, within: str | None = None) -> list[str]:
        """Return axe-core's serious findings in the shown page or within this element."""
        found: list[dict[str, Any]] = Axe().run(self.page, within).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        return [
            f"{one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}" for one in serious
        ]

    def is_wider_than_the_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"))


@contextmanager
def visit(
    browser: Browser,
    url: str,
    *,
    width: int = 1440,
    height: int = 900,
    dark: bool = False,
    **given: Any,
) -> Iterator[Visitor]:
    """Open a window on this server; requests to other hosts are recorded.

    Requests are not intercepted: that would disable the browser's cache and double the time.
    """
    scheme: Any = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        reduced_motion="reduce",
        **given,
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    visitor = Visitor(context, page, url)

    def note(request: Request) -> None:
        if not request.url.startswith((f"{url}/", "data:", "blob:", "about:")):
            visitor.left.append(request.url)

    context.on("request", note)
    page.on(
        "console",
        lambda said: visitor.told.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: visitor.told.append(str(error)))
    yield visitor
    context.close()


def moving_picture(frames: Sequence[bytes], seconds: float, path: Path) -> None:
    """Write PNG pictures of one size as an animated PNG (https://www.w3.org/TR/png-3/)."""
    parts = [list(_chunks(frame)) for frame in frames]
    header = next(data for kind, data in parts[0] if kind == b"IHDR")
    assert all(
        next(data for kind, data in frame if kind == b"IHDR") == header for frame in parts
    ), "frames have different sizes"
    size, number = header[:8], 0
    written = [
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", header),
        _chunk(b"acTL", struct.pack(">II", len(frames), 0)),
    ]
    for place, frame in enumerate(parts):
        control = size + struct.pack(">IIHHBB", 0, 0, int(seconds * 1000), 1000, 0, 0)
        written.append(_chunk(b"fcTL", struct.pack(">I", number) + control))
        number += 1
        pixels = b"".join(data for kind, data in frame if kind == b"IDAT")
        if place == 0:
            written.append(_chunk(b"IDAT", pixels))
        else:
            written.append(_chunk(b"fdAT", struct.pack(">I", number) + pixels))
            number += 1
    path.write_bytes(b"".join([*written, _chunk(b"IEND", b"")]))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += 12 + length


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
