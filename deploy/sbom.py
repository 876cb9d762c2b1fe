"""Write the lists of the packages that a release needs, with their licences.

`make dist` calls this program.

    python deploy/sbom.py dist

The program writes three files into the folder of the wheel:

- `ricordo-VERSION.cdx.json`: the list of packages as CycloneDX 1.6 (SBOM).
- `ricordo-VERSION-licences.md`: the same list as a table, with licences.
- `ricordo-VERSION-requirements.txt`: the versions and hashes to install the wheel with.

The packages are those that `make install` installs, from `requirements/base.txt`, `embeddings.txt`
and `files.txt`. Licences are read from the installed packages.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from ricordo import __version__

ROOT = Path(__file__).parents[1]
LOCKS = ("base", "embeddings", "files")
_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def main(folder: Path) -> None:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    locks = [(ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8") for name in LOCKS]
    components = list({part.purl: part for lock in locks for part in components_of(lock)}.values())
    name = f"ricordo-{__version__}"
    (folder / f"{name}.cdx.json").write_text(sbom(components), encoding="utf-8")
    (folder / f"{name}-licences.md").write_text(licence_list(components), encoding="utf-8")
    (folder / f"{name}-requirements.txt").write_text(locks[0], encoding="utf-8")


def components_of(lock: str) -> Iterator[Component]:
    """Yield the packages of a lock file, with their hashes, and licences where installed."""
    pins = list(_PIN.finditer(lock))
    ends = [pin.start() for pin in pins[1:]] + [len(lock)]
    for pin, end in zip(pins, ends, strict=True):
        name, version = pin.groups()
        address = PackageURL("pypi", name=name, version=version)
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            purl=address,
            bom_ref=str(address),
            hashes=[
                HashType(alg=HashAlgorithm.SHA_256, content=digest)
                for digest in _HASH.findall(lock, pin.start(), end)
            ],
            licenses=[LicenseFactory().make_from_string(text) for text in licences(name)],
        )


def licences(name: str) -> list[str]:
    """Return the licence of an installed package.

    The licence is the first of these in the package's metadata: the licence expression, the
    classifiers, the short text. A package for another platform is not installed, and has no licence
    here.
    """
    try:
        told: PackageMetadata = metadata(name)
    except PackageNotFoundError:
        return []
    if expression := told.get("License-Expression"):
        return [expression]
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in told.get_all("Classifier") or []
        if line.startswith("License :: OSI Approved :: ")
    ]
    if classifiers:
        return sorted(classifiers)
    text = (told.get("License") or "").strip().partition("\n")[0]
    return [text] if text else []


def sbom(components: list[Component]) -> str:
    """Return the list of packages as CycloneDX 1.6 in JSON."""
    bom = Bom(components=components)
    bom.metadata.component = Component(
        name="ricordo", version=__version__, type=ComponentType.APPLICATION
    )
    bom.register_dependency(bom.metadata.component, components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def licence_list(components: list[Component]) -> str:
    """Return the packages with their licences as a table in Markdown."""
    rows = [
        f"| {part.name} | {part.version} | {', '.join(licences(part.name)) or 'not installed here'} |"
        for part in sorted(components, key=lambda part: part.name)
    ]
    return "\n".join(["| package | version | licence |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
