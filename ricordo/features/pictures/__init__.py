"""Texts of pictures: a caption, or the text in a picture, is indexed with its message."""

from ricordo.plugins import Feature

feature = Feature(
    settings=("ricordo.features.pictures.options:PictureSettings",),
    jobs=("ricordo.features.pictures.jobs:HANDLERS",),
    open="ricordo.features.pictures.jobs:open_reading",
    findings=("ricordo.features.pictures.tesseract:findings",),
)
