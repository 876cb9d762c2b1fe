"""Runs and background jobs: lists, pages of one, and their actions."""

from fastapi import Request, Response

from ricordo.api.routing import needs
from ricordo.domain.scope import REQUEST_SCOPE
from ricordo.errors import Forbidden, Invalid
from ricordo.pages.inside import Api
from ricordo.pages.shell import Pages, address_of, done, render
from ricordo.storage import conversation_overviews

router = Pages("/ui", scope="messages")
_PAGE = 50
# Limits of one run's page.
_MOST_MESSAGES = 500
_MOST_STEPS = 200
RUN_STATUSES = ("running", "completed", "failed", "cancelled")
JOB_STATUSES = ("running", "pending", "completed", "failed", "cancelled")


@router.get("/runs")
async def list_runs(request: Request) -> Response:
    """List the runs, newest first, of one agent or with one status."""
    api = Api(request)
    query = request.query_params
    agent_id = query.get("agent") or None
    status = query.get("status") or None
    after = query.get("after") or None
    runs = await api.get(
        "/v1/runs/", agent_id=agent_id, statuses=status, after=after, limit=_PAGE + 1
    )
    scope = request.scope[REQUEST_SCOPE]
    store = request.app.state.runtime.store
    ids = {run["agent_id"] for run in runs}
    if agent_id:
        ids.add(agent_id)
    older = ""
    if runs[_PAGE:]:
        older = address_of("/ui/runs", agent=agent_id, status=status, after=runs[_PAGE - 1]["id"])
    return await render(
        request,
        "runs.html",
        runs=runs[:_PAGE],
        names=await store.read(lambda tx: conversation_overviews.names_of_agents(tx, scope, ids)),
        agent_id=agent_id,
        asked_status=status,
        statuses=RUN_STATUSES,
        older=older,
    )


@router.get("/runs/{run_id}")
async def show_run(request: Request, run_id: str) -> Response:
    """Show one run: its steps with their messages, tokens and cost."""
    api = Api(request)
    run = await api.get(f"/v1/runs/{run_id}")
    agent = await api.find(f"/v1/agents/{run['agent_id']}")
    messages = (
        await api.find(f"/v1/runs/{run_id}/messages", limit=_MOST_MESSAGES, order="asc") or []
    )
    steps = await api.find(f"/v1/runs/{run_id}/steps", limit=_MOST_STEPS, order="asc") or []
    return await render(
        request,
        "run.html",
        run=run,
        agent=agent,
        steps=steps,
        messages=messages,
        asked=[message for message in messages if message["message_type"] == "user_message"],
        is_cut=len(messages) == _MOST_MESSAGES or len(steps) == _MOST_STEPS,
        usage=await api.find(f"/v1/runs/{run_id}/usage"),
        has_prompts=bool(await api.find(f"/v1/runs/{run_id}/trace", limit=1)),
        is_large=True,
    )


@router.post("/runs/{run_id}/cancel")
async def cancel_run(request: Request, run_id: str) -> Response:
    api = Api(request)
    run = await api.get(f"/v1/runs/{run_id}")
    body = {"run_ids": [run_id]}
    outcome = await api.ask("POST", f"/v1/agents/{run['agent_id']}/messages/cancel", body)
    notice = "The run is being stopped."
    if outcome.get(run_id) != "cancelled":
        run = await api.get(f"/v1/runs/{run_id}")
        if run["status"] in ("created", "running"):
            raise Forbidden("This run is shared with others, so your key cannot stop it.")
        notice = "The run had ended already."
    return done(request, f"/ui/runs/{run_id}", notice)


@router.post("/runs/{run_id}/retry")
async def retry_run(request: Request, run_id: str) -> Response:
    """Send the messages of a failed or cancelled run again, as a new run."""
    api = Api(request)
    run = await api.get(f"/v1/runs/{run_id}")
    if run["status"] not in ("failed", "cancelled"):
        raise Invalid("Only a run that failed or was cancelled can be tried again.")
    messages = await api.get(f"/v1/runs/{run_id}/messages", limit=100, order="asc")
    new_messages = [
        {"role": "user", "content": message["content"]}
        for message in messages
        if message["message_type"] == "user_message"
    ]
    if not new_messages:
        raise Invalid("This run has no message that could be sent again.")
    body = {"messages": new_messages, "streaming": False, "agent_id": run["agent_id"]}
    await api.ask("POST", f"/v1/conversations/{run['conversation_id']}/messages", body)
    return done(
        request,
        address_of(f"/ui/agents/{run['agent_id']}/chat", conversation=run["conversation_id"]),
    )


@router.get("/jobs")
async def list_jobs(request: Request) -> Response:
    """List the jobs, newest first, and the state of the queue."""
    api = Api(request)
    query = request.query_params
    status = query.get("status") or None
    kind = query.get("kind") or None
    after = query.get("after") or None
    jobs = await api.get("/v1/jobs/", statuses=status, kind=kind, after=after, limit=_PAGE + 1)
    queue = await api.get("/v1/jobs/queue")
    older = ""
    if jobs[_PAGE:]:
        older = address_of("/ui/jobs", kind=kind, status=status, after=jobs[_PAGE - 1]["id"])
    return await render(
        request,
        "jobs.html",
        jobs=jobs[:_PAGE],
        queue=queue,
        kind=kind,
        asked_status=status,
        statuses=JOB_STATUSES,
        older=older,
    )


@router.get("/jobs/{job_id}")
async def show_job(request: Request, job_id: str) -> Response:
    return await render(request, "job.html", job=await Api(request).get(f"/v1/jobs/{job_id}"))


@router.post("/jobs/{job_id}/cancel")
@needs("messages:write")
async def cancel_job(request: Request, job_id: str) -> Response:
    await Api(request).ask("PATCH", f"/v1/jobs/{job_id}/cancel")
    return done(request, f"/ui/jobs/{job_id}", "The job was cancelled.")
