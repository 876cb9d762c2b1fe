"""The page of backups: which there are, and how one is put back."""

from shlex import quote

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import ADMIN
from ricordo.features.operations.backups.jobs import MAKE
from ricordo.features.operations.backups.service import folder_of
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, done, render

router = Pages("/ui/backups")
_HOME = "/ui/backups"


@router.get("")
@needs(ADMIN)
async def list_backups(request: Request) -> Response:
    """The backups; while one is made, the page renews itself."""
    api, settings = Api(request), request.app.state.runtime.settings
    found = await api.get("/v1/backups")
    jobs = await api.find("/v1/jobs/", kind=MAKE, limit=1) or []
    names = [one["name"] for one in found if one["name"].endswith(".db")]
    newest = quote(str(folder_of(settings) / names[0])) if names else ""
    shown = {"backups": found, "job": jobs[0] if jobs else None, "newest": newest}
    shown |= {"is_postgres": settings.postgres_url is not None, "data_dir": settings.data_dir}
    return await render(request, "operations.backups/backups.html", **shown)


@router.post("/make")
@needs(ADMIN)
async def make(request: Request) -> Response:
    await Api(request).ask("POST", "/v1/backups")
    return done(request, _HOME, "The backup has begun.")


@router.post("/{backup_name}/check")
@needs(ADMIN)
async def check(request: Request, backup_name: str) -> Response:
    told = await Api(request).ask("POST", f"/v1/backups/{backup_name}/check")
    return done(request, _HOME, told["message"])


@router.post("/{backup_name}/delete")
@needs(ADMIN)
async def delete(request: Request, backup_name: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/backups/{backup_name}")
    return done(request, _HOME, "The backup was deleted.")
