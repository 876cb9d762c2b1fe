"""Every endpoint of YouLab's first server is there, with a test that shows what it does; docs/compatibility.md lists them."""

from pathlib import Path

from tests.api.test_openapi import operations
from tests.seams.server import serving

TESTS = Path(__file__).parents[1]
_USERS, _PROPOSALS, _TASKS = "api/test_users.py", "api/test_proposals.py", "features/tasks/test_tasks.py"
_STREAM = "features/tutor_chat/test_stream.py"
_MADE = f"{_TASKS}::test_a_task_is_made_changed_run_and_deleted"
_PAUSED = f"{_TASKS}::test_a_course_says_its_tasks_and_a_pause_stays"
_FILED = "features/workspaces/test_workspaces.py::test_files_are_stored_read_listed_and_deleted"
_NOTED = "features/notes/test_notes.py::test_blocks_are_notes_and_an_edit_is_a_version_of_the_owners"
_FIRST_PUT = f"{_USERS}::test_a_first_put_makes_the_user_and_the_block"
_RESTORED = f"{_USERS}::test_a_version_is_read_and_restored_also_of_a_block_that_was_deleted"
# By the method and path, the test.
ENDPOINTS = {
    "POST /chat/stream": f"{_STREAM}::test_a_chat_is_streamed_and_what_is_proposed_is_told",
    "GET /health": f"{_STREAM}::test_what_fails_is_an_event_and_what_is_wrong_a_sentence",
    "GET /users/{user_id}/blocks": f"{_PROPOSALS}::test_the_list_of_blocks_says_how_many_proposals_wait_also_for_new_blocks",
    "GET /users/{user_id}/blocks/{label}": _FIRST_PUT,
    "PUT /users/{user_id}/blocks/{label}": _FIRST_PUT,
    "DELETE /users/{user_id}/blocks/{label}": _RESTORED,
    "GET /users/{user_id}/blocks/{label}/history": f"{_USERS}::test_the_history_is_newest_first_and_goes_on_where_it_ended",
    "GET /users/{user_id}/blocks/{label}/versions/{sha}": _RESTORED,
    "POST /users/{user_id}/blocks/{label}/restore": _RESTORED,
    "GET /users/{user_id}/blocks/{label}/diffs": f"{_PROPOSALS}::test_a_proposal_waits_and_changes_nothing",
    "POST /users/{user_id}/blocks/{label}/propose": f"{_PROPOSALS}::test_a_proposal_waits_and_changes_nothing",
    "POST /users/{user_id}/blocks/{label}/diffs/{diff_id}/approve": (
        f"{_PROPOSALS}::test_what_is_approved_is_the_agents_version_and_says_who_approved"
    ),
    "POST /users/{user_id}/blocks/{label}/diffs/{diff_id}/reject": (
        f"{_PROPOSALS}::test_what_is_rejected_stays_readable_with_the_reason"
    ),
    "GET /background/tasks": _PAUSED,
    "POST /background/tasks": _MADE,
    "GET /background/tasks/{task_name}": _PAUSED,
    "DELETE /background/tasks/{task_name}": _MADE,
    "POST /background/tasks/{task_name}/enable": _PAUSED,
    "POST /background/tasks/{task_name}/disable": f"{_TASKS}::test_a_paused_task_leaves_out_what_waits_and_runs_by_hand",
    "POST /background/tasks/{task_name}/run": _MADE,
    "GET /background/tasks/{task_name}/runs": _MADE,
    "GET /background/runs/{task_run_id}": f"{_TASKS}::test_idle_students_get_a_proposal_each_and_see_nothing_of_the_task",
    "GET /users/{user_id}/workspace/files": _FILED,
    "GET /users/{user_id}/workspace/files/{file_path}": _FILED,
    "PUT /users/{user_id}/workspace/files/{file_path}": _FILED,
    "DELETE /users/{user_id}/workspace/files/{file_path}": _FILED,
    "POST /users/{user_id}/workspace/sync": "features/openwebui/test_server.py::test_a_user_is_synced_at_once_and_forgotten_here",
    "GET /api/you/notes/": _NOTED,
    "GET /api/you/notes/{note_id}": _NOTED,
    "POST /api/you/notes/{note_id}/update": _NOTED,
}


def test_each_is_served_and_has_its_test(tmp_path: Path) -> None:
    with serving(tmp_path) as server, server.http() as http:
        served = {f"{method.upper()} {path}" for method, path, _ in operations(http.get("/openapi.json").json())}
    assert set(ENDPOINTS) - served == set()
    for test in ENDPOINTS.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text("utf-8"), test
