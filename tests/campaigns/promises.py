"""The promises that campaigns test, and the table of their results in `docs/operate/trust.md`.

`make soak` writes the results into `docs/operate/campaigns.json`, and the table from them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
RESULTS = TESTS.parent / "docs/operate/campaigns.json"
PAGE = TESTS.parent / "docs/operate/trust.md"
_BEGIN, _END = "<!-- campaigns: begin -->", "<!-- campaigns: end -->"
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Promise:
    """One promise of the server, and the names of the tests that try to break it."""

    text: str
    tests: tuple[str, ...]


PROMISES = (
    Promise(
        "A turn, a memory edit or a job that was acknowledged survives `kill -9`, and happens once",
        (
            "test_a_server_that_is_killed_in_the_middle_of_turns_loses_nothing_it_acknowledged",
            "test_servers_of_which_one_is_killed_again_and_again_lose_no_turn_and_no_job",
            "test_a_kill_at_each_statement_and_await_of_each_write_loses_and_doubles_nothing",
            "test_a_kill_at_every_await_of_a_turn_loses_nothing",
            "test_no_turn_is_lost_or_doubled_by_crashes_of_postgresql",
            "test_a_server_that_is_killed_in_a_turn_or_an_approval_answers_the_next_message",
            "test_no_message_is_lost_or_doubled_however_often_servers_are_killed",
            "test_every_message_is_in_one_transcript_however_often_servers_are_killed",
            "test_nobody_speaks_twice_however_often_servers_are_killed",
            "test_a_kill_at_any_moment_sends_each_message_once",
            "test_a_kill_at_any_moment_answers_each_request_once",
            "test_a_kill_of_the_server_leaves_no_half_file_and_the_next_server_goes_on",
            "test_a_kill_of_the_server_leaves_no_process_and_the_call_ends_as_interrupted",
            "test_what_was_confirmed_before_a_kill_is_in_the_log",
            "test_a_long_import_is_killed_often",
        ),
    ),
    Promise(
        "After a fault at any moment of a turn, the agent answers the next message",
        (
            "test_after_any_fault_the_next_message_is_answered_and_nothing_is_lost",
            "test_the_same_holds_on_a_shared_database_whose_connections_break_and_whose_runs_"
            "others_take_over",
        ),
    ),
    Promise(
        "No fault of a model's server makes an agent unusable or shows markup as an answer",
        ("test_no_fault_of_a_model_server_makes_an_agent_unusable_or_shows_markup",),
    ),
    Promise(
        "Nothing that a user said or wrote is told to another",
        ("test_no_word_of_a_user_is_told_to_another",),
    ),
    Promise(
        "Edits at the same time lose nothing, on any side of a sync",
        (
            "test_writers_in_two_processes_lose_nothing",
            "test_of_twenty_writers_at_once_each_keeps_what_it_wrote",
            "test_what_meets_an_approval_comes_before_or_behind_it",
            "test_edits_on_both_sides_with_kills_lose_nothing",
            "test_syncs_that_are_killed_end_with_what_the_memory_has",
            "test_a_crowd_of_clients_loses_no_turn_and_no_edit",
        ),
    ),
    Promise(
        "Reads, edits, proposals and approvals of one block have one order that explains each answer",
        ("test_requests_about_one_block_have_one_order",),
    ),
    Promise(
        "After a write-ahead log was cut off or torn, or a disk filled up, refused writes or stood "
        "still, the database holds the acknowledged writes up to some point, without a gap",
        (
            "test_a_cut_or_torn_log_keeps_the_acknowledged_writes_up_to_some_point",
            "test_a_disk_that_fills_up_at_any_write_of_a_turn_loses_nothing_acknowledged",
            "test_a_disk_that_refuses_writes_from_any_statement_of_a_turn_loses_nothing_"
            "acknowledged",
            "test_a_disk_that_stands_still_at_any_write_of_a_turn_loses_and_doubles_nothing",
            "test_turns_on_a_disk_that_is_slow_at_every_write_are_answered_once",
        ),
    ),
    Promise(
        "A clock that jumps, connections and listeners that are cut, and a database that goes away "
        "hold nobody up for long, and cost no turn and no job",
        (
            "test_a_server_goes_on_after_its_clock_jumped_ahead_by_a_year_and_back",
            "test_jobs_and_leases_continue_within_a_minute_after_a_wrong_clock",
            "test_no_job_is_lost_when_connections_are_cut",
            "test_the_job_of_a_wake_up_runs_once_after_any_fault",
            "test_a_turn_whose_database_goes_away_says_so_and_the_next_message_is_answered",
            "test_jobs_of_before_during_and_after_an_outage_are_done",
        ),
    ),
    Promise(
        "A database of each earlier schema keeps its rows, and becomes like a new one",
        ("test_an_older_database_keeps_its_rows_and_gets_the_present_schema",),
    ),
    Promise(
        "No request breaks the server, and each answer is as documented",
        (
            "test_no_request_breaks_the_server_or_is_answered_otherwise_than_documented",
            "test_the_same_holds_on_postgresql",
            "test_a_hostile_value_of_a_route_is_refused_or_can_be_read_again",
            "test_hostile_values_in_each_field_are_refused_or_can_be_read_again",
            "test_the_same_holds_of_some_fields_of_each_route_on_postgresql",
        ),
    ),
    Promise(
        "A damaged backup is refused, and a killed restore leaves the old or the new database",
        (
            "test_every_damage_is_refused_with_a_sentence",
            "test_a_restore_that_is_killed_leaves_the_old_or_the_new",
        ),
    ),
    Promise(
        "An erasure leaves nothing of the user, however often it is killed",
        ("test_nothing_of_the_erased_is_left_by_killed_commands",),
    ),
    Promise(
        "Every message of a long conversation is in the window or in a summary, and recall finds it",
        ("test_no_window_is_too_small_for_any_turn_and_recall_finds_what_left_it",),
    ),
    Promise(
        "A server's memory and open files stay flat over thousands of turns and over days",
        (
            "test_memory_after_ten_thousand_turns_is_little_more_than_after_one_thousand",
            "test_after_simulated_hours_memory_and_open_files_are_what_they_were",
        ),
    ),
    Promise(
        "One client cannot stop the server for others",
        (
            "test_others_are_served_in_the_middle_of",
            "test_others_wait_no_longer_than_50_ms_in_the_middle_of",
        ),
    ),
    Promise(
        "Text that poses as an instruction is not written where somebody decides",
        ("test_poisoned_text_is_not_written_without_a_decision",),
    ),
)


@cache
def promised_tests() -> frozenset[str]:
    """The node ids of the tests that the promises name, without parameters."""
    wanted = {test for promise in PROMISES for test in promise.tests}
    return frozenset(node for node in _all_tests() if node.rpartition("::")[2] in wanted)


def _all_tests() -> Iterator[str]:
    for path in TESTS.rglob("test_*.py"):
        for name in _TEST.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(TESTS.parent).as_posix()}::{name}"


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all promises in Markdown.

    Args:
        results: The results by names of tests, as `tests.support.campaign_record` keeps them.
    """
    lines = ["| promise | tests | tried | oldest run | result |", "|---|---|---|---|---|"]
    lines += [_row(promise, results) for promise in PROMISES]
    return "\n".join(lines)


def _row(promise: Promise, results: Mapping[str, Mapping[str, Any]]) -> str:
    files: dict[str, None] = {}
    ran: list[Mapping[str, Any]] = []
    for node in sorted(promised_tests()):
        path, _, name = node.partition("::")
        if name in promise.tests:
            files[f"`{path}`"] = None
            ran += [result for test, result in results.items() if test.partition("[")[0] == name]
    tests = ", ".join(files)
    if not ran:
        return f"| {promise.text} | {tests} | | never | not run yet |"
    failed = sum(result["outcome"] == "failed" for result in ran)
    skipped = sum(result["outcome"] == "skipped" for result in ran)
    outcome = f"{failed} failed" if failed else "held"
    names = {name for test in results if (name := test.partition("[")[0]) in promise.tests}
    if len(names) < len(promise.tests):
        outcome += f", {len(promise.tests) - len(names)} of {len(promise.tests)} tests never ran"
    if skipped:
        outcome += f", {skipped} skipped"
    oldest = min(result["date"] for result in ran)
    return f"| {promise.text} | {tests} | {_tried(ran)} | {oldest} | {outcome} |"


def _tried(ran: list[Mapping[str, Any]]) -> str:
    sums: dict[str, int] = {}
    for result in ran:
        for name, count in result["counts"].items():
            sums[name] = sums.get(name, 0) + int(count)
    counts = [f"{count:,} {name}" for name, count in sorted(sums.items())]
    return ", ".join(counts or [f"{len(ran):,} tests"])


def page_with(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with the table of these results between its two marks."""
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n{table(results)}\n{_END}{after}"
