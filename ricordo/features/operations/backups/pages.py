"""The page of backups, with instructions for a restore."""

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
    """Show the backups; the page reloads itself while one is made."""
    api = Api(request)
    settings = request.app.state.runtime.settings
    backups = await api.get("/v1/backups")
    jobs = await api.find("/v1/jobs/", kind=MAKE, limit=1) or []
    names = [backup["name"] for backup in backups if backup["name"].endswith(".db")]
    if names:
        newest = quote(str(folder_of(settings) / names[0]))
    else:
        newest = ""
    return await render(
        request,
        "operations.backups/backups.html",
        backups=backups,
        job=jobs[0] if jobs else None,
        newest=newest,
        is_postgres=settings.postgres_url is not None,
        data_dir=settings.data_dir,
    )


@router.post("/make")
@needs(ADMIN)
async def make(request: Request) -> Response:
    await Api(request).ask("POST", "/v1/backups")
    return done(request, _HOME, "The backup has begun.")


@router.post("/{backup_name}/check")
@needs(ADMIN)
async def check(request: Request, backup_name: str) -> Response:
    note = await Api(request).ask("POST", f"/v1/backups/{backup_name}/check")
    return done(request, _HOME, note["message"])


@router.post("/{backup_name}/delete")
@needs(ADMIN)
async def delete(request: Request, backup_name: str) -> Response:
    await Api(request).ask("DELETE", f"/v1/backups/{backup_name}")
    return done(request, _HOME, "The backup was deleted.")
