"""Pictures for providers: checks, normal form and download.

If a provider cannot read one picture, it refuses the whole transcript, in every turn.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeGuard
from urllib.parse import urlsplit

from ricordo.domain.message import PICTURE_TYPES, ImagePart, Message, Part, TextPart

UNREADABLE = "(a picture that cannot be read)"
_INLINE = "data:"
FETCH_SECONDS = 20.0
MOST_BYTES = 20 * 1024 * 1024
_CACHED_CHARACTERS = 64 * 1024 * 1024  # of all cached pictures in base64
_FAILURE_SECONDS = 300.0  # before a picture that could not be fetched is tried again
_KEPT_FAILURES = 1_000  # addresses
# Pictures that are fetched at once; each may take 50 MiB until its size is known.
_FETCHED_AT_ONCE = 8
# The first bytes of each type of picture. Sources: PNG, W3C REC-png-3 section 5.2; JPEG, ITU-T T.81
# annex B; GIF89a specification section 17.
_FIRST_BYTES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_WEBP = "image/webp"

_log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the bytes at an address and their media type; it must itself refuse private addresses."""


def type_of_picture(content: bytes) -> str | None:
    """Return the media type that the first bytes show; None for anything but a known picture.

    Args:
        content: The bytes of the file. WebP files begin with a RIFF header (RFC 9649 section 2.4).
    """
    for first_bytes, media_type in _FIRST_BYTES:
        if content.startswith(first_bytes):
            return media_type
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return _WEBP
    return None


def readable_picture(picture: ImagePart) -> ImagePart | None:
    """Return the picture in the providers' form.

    The type that the bytes show replaces a wrong type, since providers compare both.

    Args:
        picture: The picture of a message, with its data or its address.

    Returns:
        The picture; None if its data, kind or address is unreadable.
    """
    if picture.url is not None and picture.url.startswith(_INLINE):
        kind, _, encoded = picture.url.removeprefix(_INLINE).partition(";base64,")
        return readable_picture(replace(picture, media_type=kind, data=encoded, url=None))
    if picture.url is not None:
        with suppress(ValueError):
            parts = urlsplit(picture.url)
            if parts.scheme in {"http", "https"} and parts.hostname:
                return picture
            return None
        return None
    media_type = (picture.media_type or "").partition(";")[0].strip().lower()
    if media_type == "image/jpg":
        media_type = "image/jpeg"
    encoded = "".join((picture.data or "").split())
    with suppress(ValueError):
        content = base64.b64decode(encoded, validate=True)
        media_type = type_of_picture(content) or media_type
        if media_type in PICTURE_TYPES and content:
            return replace(picture, media_type=media_type, data=encoded)
    return None


class PictureCache:
    """Pictures fetched for providers that take them inside the request.

    The newest are kept. A picture that cannot be fetched becomes a note, and is tried again some
    minutes later. Otherwise one dead address would delay every call of a conversation.

    Args:
        fetch: Fetches a picture.
        seconds: The longest time for one picture.
        now: The monotonic time in seconds.
    """

    def __init__(
        self,
        fetch: Fetch,
        seconds: float = FETCH_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._seconds = seconds
        self._now = now
        self._cached: dict[str, ImagePart] = {}
        self._cached_characters = 0
        # The times of failures by address, the oldest first.
        self._failed_at: dict[str, float] = {}
        self._fetching = asyncio.Semaphore(_FETCHED_AT_ONCE)

    async def inline(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with each picture at an address fetched or replaced by a note."""
        urls = {part.url for message in messages for part in message.parts if _is_remote(part)}
        if not urls:
            return tuple(messages)
        pictures = await asyncio.gather(*(self._get(str(url)) for url in urls))
        fetched = dict(zip(urls, pictures, strict=True))

        def inline_message(message: Message) -> Message:
            parts = tuple(fetched[part.url] if _is_remote(part) else part for part in message.parts)
            if parts == message.parts:
                return message
            return replace(message, parts=parts)

        return tuple(map(inline_message, messages))

    async def _get(self, url: str) -> Part:
        if (cached := self._cached.get(url)) is not None:
            return cached
        failed_at = self._failed_at.get(url)
        if failed_at is not None and self._now() - failed_at < _FAILURE_SECONDS:
            return TextPart(UNREADABLE)
        is_tried = False
        picture = None
        try:
            async with asyncio.timeout(self._seconds), self._fetching:
                is_tried = True
                content, media_type = await self._fetch(url)
                if len(content) <= MOST_BYTES:
                    encoded = base64.b64encode(content).decode()
                    picture = readable_picture(ImagePart(media_type, data=encoded))
        # any failure concerns only one picture, and a note can replace that
        except Exception as error:
            _log.info("A picture cannot be fetched: %s", type(error).__name__)
        if picture:
            self._keep(url, picture)
            return picture
        if is_tried:
            self._keep_failure(url)
        return TextPart(UNREADABLE)

    def _keep(self, url: str, picture: ImagePart) -> None:
        self._failed_at.pop(url, None)
        self._drop(url)  # two conversations may have fetched it at once
        self._cached[url] = picture
        self._cached_characters += len(picture.data or "")
        while self._cached_characters > _CACHED_CHARACTERS:
            self._drop(next(iter(self._cached)))

    def _drop(self, url: str) -> None:
        if picture := self._cached.pop(url, None):
            self._cached_characters -= len(picture.data or "")

    def _keep_failure(self, url: str) -> None:
        self._failed_at.pop(url, None)
        self._failed_at[url] = self._now()
        if len(self._failed_at) > _KEPT_FAILURES:
            del self._failed_at[next(iter(self._failed_at))]


def _is_remote(part: Part) -> TypeGuard[ImagePart]:
    return isinstance(part, ImagePart) and part.url is not None and not part.url.startswith(_INLINE)
