"""Skills as zip files with one folder that contains `SKILL.md`, as other programs exchange them.

A received zip file is untrusted. Its entries are checked before any is read, and nothing is ever
unpacked to a disk.
"""

import io
import stat
import zipfile

from ricordo.domain.zips import ZIP_FAULTS
from ricordo.errors import Invalid, TooLong
from ricordo.features.skills.skill import MOST_FILES, SKILL_FILE, Skill, make_skill

MOST_BYTES = 1_000_000
"""The most bytes of a zip file, and of all its unpacked files."""
_MOST_ENTRIES = 4 * MOST_FILES
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can hold
_REGULAR = (stat.S_IFREG | 0o644) << 16
# Files that operating systems add to zip files, and that are skipped.
_ADDED = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini")


def to_zip(skill: Skill) -> bytes:
    """Return the skill as a zip file. Equal skills give equal bytes.

    Args:
        skill: The skill with all of its files.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in [(SKILL_FILE, skill.content), *sorted(skill.files.items())]:
            entry = zipfile.ZipInfo(f"{skill.name}/{path}", _EPOCH)
            entry.external_attr = _REGULAR
            entry.create_system = 3  # Unix
            archive.writestr(entry, text.encode(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def from_zip(content: bytes) -> Skill:
    """Return the skill in a zip file. It may be in a folder of its name or in no folder.

    Args:
        content: The bytes of the zip file, which is untrusted.

    Raises:
        Invalid: The file is damaged, or has other entries than the texts of one skill.
        TooLong: The file or its content is too large.
    """
    if len(content) > MOST_BYTES:
        raise TooLong(f"The zip file has {len(content)} bytes. The limit is {MOST_BYTES}.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            texts = _read(archive)
    except ZIP_FAULTS:
        raise Invalid("This zip file cannot be read. Pack the skill's folder again.") from None
    folder = _folder(texts)
    prefix = f"{folder}/" if folder else ""
    files = {path.removeprefix(prefix): text for path, text in texts.items()}
    return make_skill(files.pop(SKILL_FILE), files, name=folder)


def _read(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the texts of all files by path. Raises Invalid, TooLong."""
    entries = archive.infolist()
    if len(entries) > _MOST_ENTRIES:
        raise TooLong(f"The zip file has more than {_MOST_ENTRIES} entries.")
    for entry in entries:
        _require_safe(entry)
    members = [entry for entry in entries if not entry.is_dir() and not _is_added(entry.filename)]
    if sum(entry.file_size for entry in members) > MOST_BYTES:
        raise TooLong(f"The files of the skill have more than {MOST_BYTES} bytes together.")
    texts: dict[str, str] = {}
    for entry in members:
        if entry.filename in texts:
            raise Invalid(f'The zip file has "{entry.filename[:80]}" twice. Pack it again.')
        texts[entry.filename] = _text(archive, entry)
    return texts


def _require_safe(entry: zipfile.ZipInfo) -> None:
    """Raise Invalid for a link, a device, or a path that leads out of the zip file's folder."""
    # Check the original name too: `filename` is cut at a NUL, and has this system's separator
    # replaced by "/".
    name = entry.orig_filename
    parts = name.rstrip("/").split("/")
    mode = stat.S_IFMT(entry.external_attr >> 16)
    if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise Invalid(f'"{name[:80]}" in the zip file is a link or a device, and not a file.')
    is_relative = all(part not in ("", ".", "..") for part in parts)
    if not is_relative or "\\" in name or "\0" in name or ":" in parts[0]:
        raise Invalid(f'"{name[:80]}" in the zip file leads out of its folder.')


def _is_added(name: str) -> bool:
    parts = name.split("/")
    return parts[0] == _ADDED[0] or parts[-1] in _ADDED


def _text(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    with archive.open(entry) as file:
        # Read one byte more than the stated size, to detect a false size.
        content = file.read(entry.file_size + 1)
    if len(content) != entry.file_size:
        raise Invalid(f'"{entry.filename[:80]}" has another size than the zip file says.')
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Invalid(
            f'"{entry.filename[:80]}" is not text in UTF-8. The files of a skill must be text.'
        )
    return text


def _folder(texts: dict[str, str]) -> str | None:
    """Return the folder that contains all files; None if they are in no folder. Raises Invalid."""
    if SKILL_FILE in texts:
        return None
    folders = {path.partition("/")[0] for path in texts}
    if len(folders) != 1 or f"{min(folders)}/{SKILL_FILE}" not in texts:
        raise Invalid(
            f"The zip file must hold one folder with {SKILL_FILE}, or {SKILL_FILE} itself."
        )
    return min(folders)
