"""Pictures: which of them a provider can be shown."""

import pytest

from ricordo.domain.message import ImagePart
from ricordo.llm.pictures import readable_picture


@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg", "image/gif", "image/webp"])
def test_a_picture_of_a_kind_that_all_providers_take_stays_as_it_is(media_type: str) -> None:
    picture = ImagePart(media_type, data="QUJD", detail="low")
    assert readable_picture(picture) == picture


def test_usual_ways_to_write_a_picture_are_put_right() -> None:
    written = ImagePart("IMAGE/JPG; charset=x", data="QU\nJD ")
    assert readable_picture(written) == ImagePart("image/jpeg", data="QUJD")


@pytest.mark.parametrize(
    "picture",
    [
        ImagePart("image/png", data="not base64!"),
        ImagePart("image/png", data="QUJ"),
        ImagePart("image/png", data="ünreadable"),
        ImagePart("image/png", data=""),
        ImagePart("image/png"),
        ImagePart("image/tiff", data="QUJD"),
        ImagePart("application/pdf", data="QUJD"),
        ImagePart("", data="QUJD"),
        ImagePart("image/png", url="ftp://host/a.png"),
        ImagePart("image/png", url="http://[bad/a.png"),
        ImagePart("image/png", url=""),
        ImagePart("image/png", url="data:image/png;base64,no base64!"),
        ImagePart("image/png", url="data:image/png,plain"),
    ],
)
def test_anything_else_cannot_be_read(picture: ImagePart) -> None:
    assert readable_picture(picture) is None


def test_an_address_that_holds_the_picture_is_data() -> None:
    inline = ImagePart("", url="data:image/gif;base64,QUJD")
    assert readable_picture(inline) == ImagePart("image/gif", data="QUJD")


def test_an_address_needs_no_media_type() -> None:
    picture = ImagePart("", url="https://host/a")
    assert readable_picture(picture) == picture
