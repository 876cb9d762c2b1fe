"""Write the TypeScript types of the memory routes; `make types` calls this program.

    python deploy/typescript_types.py

reads the server's OpenAPI document and writes `clients/typescript/src/schema.d.ts` by
openapi-typescript. The types have the routes in `ROUTES` and the models that these use, without
texts.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ricordo.app import create_app
from ricordo.settings import ProviderSettings, Settings

CLIENT = Path(__file__).parents[1] / "clients/typescript"
TYPES = CLIENT / "src/schema.d.ts"
ROUTES = re.compile(
    r"/users/\{user_id\}/(blocks|diffs|ask|memories)(/.*)?|/v1/users/\{user_id\}/(facts|profile)(/.*)?"
)
_TEXTS = ("description", "summary", "title")
_REFERENCE = re.compile(r'"#/components/schemas/([^"]+)"')


def document() -> dict[str, Any]:
    """Return the part of the server's OpenAPI document that the client covers."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        app = create_app(settings, ProviderSettings.model_construct())
        whole: dict[str, Any] = app.openapi()
    paths = {path: item for path, item in whole["paths"].items() if ROUTES.fullmatch(path)}
    models = whole["components"]["schemas"]
    needed: dict[str, Any] = {}
    waiting = _REFERENCE.findall(json.dumps(paths))
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = models[name]
            waiting += _REFERENCE.findall(json.dumps(models[name]))
    schemas = dict(sorted(needed.items()))
    info = {"title": "Ricordo", "version": "1"}
    return {
        "openapi": whole["openapi"],
        "info": info,
        "paths": without_texts(paths),
        "components": {"schemas": without_texts(schemas)},
    }


def without_texts(part: Any, *, are_names: bool = True) -> Any:
    """Return a part of the document without its texts, which would change the types too often.

    `are_names`: the keys are names of routes, models or properties, so all of them stay.
    """
    if isinstance(part, list):
        return [without_texts(item, are_names=False) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: without_texts(item, are_names=not are_names and key == "properties")
        for key, item in part.items()
        if are_names or key not in _TEXTS
    }


def types() -> str:
    """Return the types as TypeScript. Raises CalledProcessError."""
    command = ["node", "node_modules/openapi-typescript/bin/cli.js"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "openapi.json"
        source.write_text(json.dumps(document()), "utf-8")
        target = Path(folder) / "schema.d.ts"
        command += [str(source), "--output", str(target), "--default-non-nullable", "false"]
        subprocess.run(command, cwd=CLIENT, check=True, capture_output=True)  # noqa: S603
        return target.read_text("utf-8")


if __name__ == "__main__":
    TYPES.write_text(types(), "utf-8")
