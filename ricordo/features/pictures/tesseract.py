"""Read the text in a picture with the program tesseract, in the sandbox and without a network.

The limits of the sandbox also end the work on pictures that unpack to very many pixels.
"""

import base64
import shutil
from pathlib import Path

from ricordo.domain.message import ImagePart
from ricordo.features.pictures.options import PictureSettings
from ricordo.llm.pictures import readable_picture
from ricordo.sandbox.backends import candidates, why_none
from ricordo.sandbox.options import SandboxSettings
from ricordo.sandbox.service import Sandbox, SandboxCall, SandboxLimits
from ricordo.settings import Settings

MISSING = (
    "no tesseract: text in pictures is not found by search (Debian's tesseract-ocr; or set "
    "RICORDO_PICTURE_TEXT)"
)
NO_SANDBOX = "text in pictures is not found by search, since tesseract has no sandbox."
MOST_BYTES = 20 * 1024 * 1024
_LIMITS = SandboxLimits(
    memory_mb=512, cpu_seconds=20, seconds=60, processes=16, file_mb=25, output_kb=256
)


def find_program() -> str | None:
    """Return the path of the program tesseract; None if it is not installed."""
    return shutil.which("tesseract")


async def read(sandbox: Sandbox, picture: ImagePart) -> str:
    """Return the text in a picture, as the program wrote it.

    The text is "" if the picture is broken or too large, or if reading it takes too long.

    Raises:
        Unavailable: The sandbox does not work, or is full.
    """
    readable = readable_picture(picture)
    program = find_program()
    if readable is None or readable.data is None or program is None:
        return ""
    content = base64.b64decode(readable.data)
    if len(content) > MOST_BYTES:
        return ""
    languages = PictureSettings.current().picture_languages
    call = SandboxCall(
        argv=(program, "picture", "stdout", "-l", languages),
        files={"picture": content},
        environment={"OMP_THREAD_LIMIT": "1"},
        readable=[Path(program)],
        limits=_LIMITS,
    )
    outcome = await sandbox.run(call)
    if outcome.stopped_by or outcome.exit_code:
        return ""
    return outcome.stdout.decode("utf-8", "replace")


def findings(settings: Settings) -> list[str]:
    """Return a line of `ricordo doctor` that says how pictures are read."""
    mode = PictureSettings.current().picture_text
    if mode in ("off", "model"):
        return [f"texts of pictures: {mode}"]
    program = find_program()
    sandbox_mode = SandboxSettings.current().sandbox
    if program and not candidates(sandbox_mode, settings.data_dir):
        return [f"! {NO_SANDBOX} {why_none(sandbox_mode)}"]
    return [program or MISSING]
