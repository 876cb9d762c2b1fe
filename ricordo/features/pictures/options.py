"""Settings for texts of pictures."""

from typing import Literal

from ricordo.setting_types import FeatureSettings, about


class PictureSettings(FeatureSettings):
    """How pictures are read, so that search finds them."""

    picture_text: Literal["off", "tesseract", "model", "auto"] = about(
        "Reader of pictures in messages, so that search finds them: the program tesseract, or the "
        "agent's model, which also describes them and costs tokens. With auto: tesseract if it is "
        "installed, else nothing.",
        "auto",
    )
    picture_languages: str = about(
        "Languages that tesseract reads, by the names of its installed language data, such as "
        "eng+deu.",
        "eng",
        pattern=r"^[A-Za-z_]{1,40}(\+[A-Za-z_]{1,40}){0,9}$",
    )
