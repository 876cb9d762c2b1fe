"""The forms in which pictures are sent to a provider."""

import asyncio
import base64

import httpx2
import pytest
from pydantic_ai import models

from ricordo.domain.message import ImagePart, TextPart
from ricordo.llm.pictures import MOST_BYTES, UNREADABLE, PictureCache, readable_picture
from ricordo.llm.providers import fetch_picture
from tests.llm.talk import said


def test_common_variants_of_a_picture_are_normalized() -> None:
    written = ImagePart("IMAGE/JPG; charset=x", data="QU\nJD ")
    assert readable_picture(written) == ImagePart("image/jpeg", data="QUJD")


@pytest.mark.parametrize(
    "picture",
    [
        ImagePart("image/png", data="not base64!"),
        ImagePart("image/png", data="QUJ"),
        ImagePart("image/png"),
        ImagePart("image/tiff", data="QUJD"),
        ImagePart("", data="QUJD"),
        ImagePart("image/png", url="ftp://host/a.png"),
        ImagePart("image/png", url="http://[bad/a.png"),
        ImagePart("image/png", url="data:image/png;base64,no base64!"),
        ImagePart("image/png", url="data:image/png,plain"),
    ],
)
def test_an_invalid_picture_is_unreadable(picture: ImagePart) -> None:
    assert readable_picture(picture) is None


def test_a_data_url_becomes_picture_data() -> None:
    inline = ImagePart("", url="data:image/gif;base64,QUJD")
    assert readable_picture(inline) == ImagePart("image/gif", data="QUJD")


PICTURE = ImagePart("image/png", url="https://host/a.png")
FETCHED = ImagePart("image/png", data=base64.b64encode(b"ABC").decode())


async def test_a_picture_at_a_url_is_fetched_once_and_kept() -> None:
    asked: list[str] = []

    async def fetch(url: str) -> tuple[bytes, str]:
        asked.append(url)
        return b"ABC", "image/png"

    album = PictureCache(fetch)
    messages = said("user", "See:", PICTURE, PICTURE), said("user", "plain")
    for _ in range(2):
        first, second = await album.inline(messages)
        assert first.parts == (TextPart("See:"), FETCHED, FETCHED)
        assert second is messages[1]
    assert asked == [PICTURE.url]


@pytest.mark.parametrize(
    "found", [(b"", "image/png"), (b"<html>", "text/html"), (b"A" * (MOST_BYTES + 1), "image/png")]
)
async def test_a_url_without_a_picture_becomes_a_note(found: tuple[bytes, str]) -> None:
    async def fetch(_url: str) -> tuple[bytes, str]:
        return found

    (message,) = await PictureCache(fetch).inline([said("user", PICTURE)])
    assert message.parts == (TextPart(UNREADABLE),)


async def test_an_unreachable_url_becomes_a_note_and_is_tried_again_minutes_later() -> None:
    tries = 0
    time = 0.0

    async def fetch(_url: str) -> tuple[bytes, str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("gone")
        if tries == 2:
            await asyncio.sleep(60)
        return b"ABC", "image/png"

    album = PictureCache(fetch, seconds=0.01, now=lambda: time)
    seen = []
    for time in (0.0, 299.0, 300.0, 599.0, 600.0):  # noqa: B007 - the cache reads it
        (message,) = await album.inline([said("user", PICTURE)])
        seen.append((tries, message.parts == (FETCHED,)))
    assert seen == [(1, False), (1, False), (2, False), (2, False), (3, True)]


@pytest.mark.parametrize("content", [b"<html>", b"A" * (MOST_BYTES + 1)])
async def test_an_address_without_a_picture_is_asked_once_in_some_minutes(content: bytes) -> None:
    asked: list[str] = []

    async def fetch(url: str) -> tuple[bytes, str]:
        asked.append(url)
        return content, "text/html"

    album = PictureCache(fetch)
    for _ in range(3):
        await album.inline([said("user", PICTURE)])
    assert asked == [PICTURE.url]


async def test_a_picture_that_was_not_tried_is_no_failure() -> None:
    asked: list[str] = []
    gate = asyncio.Event()

    async def fetch(url: str) -> tuple[bytes, str]:
        asked.append(url)
        await gate.wait()
        return b"ABC", "image/png"

    album = PictureCache(fetch, seconds=1)
    pictures = [ImagePart("image/png", url=f"https://host/{number}.png") for number in range(9)]
    await album.inline([said("user", *pictures)])
    (untried,) = {picture.url for picture in pictures} - {*asked}
    gate.set()
    (message,) = await album.inline([said("user", ImagePart("image/png", url=untried))])
    assert message.parts == (FETCHED,)


async def test_the_kept_pictures_and_failures_are_bounded_by_their_size() -> None:
    asked: list[str] = []

    async def fetch(url: str) -> tuple[bytes, str]:
        asked.append(url)
        if "none" in url:
            raise OSError("gone")
        return b"A" * size, "image/png"

    def at(name: str) -> ImagePart:
        return ImagePart("image/png", url=f"https://host/{name}.png")

    album = PictureCache(fetch)
    size = 3
    small = said("user", *(at(f"small-{number}") for number in range(100)))
    for _ in range(2):
        await album.inline([small])
    assert len(asked) == 100
    size = MOST_BYTES
    for number in range(4):
        await album.inline([said("user", at(f"large-{number}"))])
    kept = [*album._cached.values()]
    assert [picture.data and len(picture.data) for picture in kept] == [len(kept[0].data or "")] * 2
    for number in range(11):
        await album.inline([said("user", *(at(f"none-{number}-{n}") for n in range(100)))])
    assert len(album._failed_at) == 1_000


FIRST_BYTES = {
    "image/png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "image/jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "image/gif": b"GIF89a\1\0\1\0",
    "image/webp": b"RIFF\x1a\0\0\0WEBPVP8L",
}


@pytest.mark.parametrize("shown", FIRST_BYTES)
@pytest.mark.parametrize("declared", [*FIRST_BYTES, "application/octet-stream", ""])
def test_the_bytes_of_a_picture_decide_its_type(declared: str, shown: str) -> None:
    data = base64.b64encode(FIRST_BYTES[shown]).decode()
    expected = ImagePart(shown, data=data)
    assert readable_picture(ImagePart(declared, data=data)) == expected
    assert readable_picture(ImagePart("", url=f"data:{declared};base64,{data}")) == expected


@pytest.mark.parametrize("name", ["photo", "photo.png", "photo.jpg", "photo.webp"])
@pytest.mark.parametrize("header", ["image/jpeg", "image/png", "application/octet-stream", ""])
async def test_a_fetched_picture_has_the_type_of_its_bytes(
    monkeypatch: pytest.MonkeyPatch, name: str, header: str
) -> None:
    contents = {**FIRST_BYTES, "": b"<!doctype html>"}
    url = f"https://host/{name}"
    for media_type, content in contents.items():

        async def download(
            _url: str, *, allow_local: bool, content: bytes = content
        ) -> httpx2.Response:
            assert not allow_local
            return httpx2.Response(200, headers={"content-type": header}, content=content)

        monkeypatch.setattr(models, "_download_within_request_budget", download)
        assert await fetch_picture(url) == (content, media_type)


async def test_pictures_are_fetched_a_few_at_a_time() -> None:
    running = 0
    most = 0

    async def fetch(_url: str) -> tuple[bytes, str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return b"ABC", "image/png"

    pictures = [ImagePart("image/png", url=f"https://host/{number}.png") for number in range(30)]
    (message,) = await PictureCache(fetch).inline([said("user", *pictures)])
    assert message.parts == (FETCHED,) * 30
    assert most == 8
