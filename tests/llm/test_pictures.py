"""The forms in which pictures are sent to a provider."""

import asyncio
import base64

import pytest

from ricordo.domain.message import ImagePart, TextPart
from ricordo.llm.pictures import MOST_BYTES, UNREADABLE, PictureCache, readable_picture
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


async def test_an_unreachable_url_becomes_a_note_and_is_tried_again_later() -> None:
    tries = 0

    async def fetch(_url: str) -> tuple[bytes, str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("gone")
        if tries == 2:
            await asyncio.sleep(60)
        return b"ABC", "image/png"

    album = PictureCache(fetch, seconds=0.01)
    seen = [(await album.inline([said("user", PICTURE)]))[0].parts for _ in range(3)]
    assert seen == [(TextPart(UNREADABLE),), (TextPart(UNREADABLE),), (FETCHED,)]
