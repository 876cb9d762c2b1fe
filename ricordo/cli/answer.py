"""Shows an answer from its events: text and reasoning as they arrive, each tool call as one dim line."""

import json
from collections.abc import Iterable
from typing import Any

from ricordo.cli.client import Json
from ricordo.cli.screen import Screen, shortened

# Stop reasons of turns without an answer, and what to print.
_ENDS = {
    "max_steps": "It stopped after too many steps. Say “go on” to continue.",
    "max_tokens_exceeded": "The answer reached the model's limit. Say “go on” to continue.",
    "cancelled": "Stopped.",
    "no_tool_call": "The model did not answer in the form that this agent needs.",
    "invalid_tool_call": "The model called a tool in a way that cannot be read.",
    "invalid_llm_response": "The model's answer cannot be read.",
}


class AnswerPrinter:
    """Shows one answer on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._calls: dict[str, tuple[str, str]] = {}
        self._speaking: tuple[str, str] | None = None
        self._is_failed = False

    def show(self, events: Iterable[Json]) -> bool:
        """Show every event; returns whether the turn succeeded."""
        try:
            for event in events:
                self._show(event)
        finally:
            self._stop_speaking()
        return not self._is_failed

    def _show(self, event: Json) -> None:
        match event["message_type"]:
            case "assistant_message":
                self._speak(event, _text(event["content"]))
            case "reasoning_message":
                self._speak(event, event["reasoning"])
            case "tool_call_message":
                self._note_calls(event)
            case "tool_return_message":
                for result in event.get("tool_returns") or [event]:
                    self._show_result(result)
            case "stop_reason":
                self._show_end(event["stop_reason"])
            case "error_message":
                self._stop_speaking()
                self._is_failed = True
                self._screen.complain(event["message"])

    def _speak(self, event: Json, text: str) -> None:
        speaking = (event["message_type"], event["id"])
        if speaking != self._speaking:
            self._stop_speaking()
        if not text:
            return
        is_answer = event["message_type"] == "assistant_message"
        if is_answer or self._screen.is_live:
            self._speaking = speaking
        (self._screen.say if is_answer else self._screen.think)(text)

    def _stop_speaking(self) -> None:
        if self._speaking:
            self._speaking = None
            self._screen.end_line()

    def _note_calls(self, event: Json) -> None:
        calls = event.get("tool_calls") or event["tool_call"]
        if isinstance(calls, list):
            self._calls |= {call["tool_call_id"]: (call["name"], call["arguments"]) for call in calls}
            return
        # A piece of a call: first its name, then its arguments in parts.
        name, arguments = self._calls.get(calls["tool_call_id"], ("", ""))
        self._calls[calls["tool_call_id"]] = (name or calls.get("name", ""), arguments + calls.get("arguments", ""))

    def _show_result(self, result: Json) -> None:
        self._stop_speaking()
        name, arguments = self._calls.pop(result["tool_call_id"], ("a tool", ""))
        line = f"↳ {name}({_fields(arguments)})"
        if result["status"] == "error":
            line += f" failed: {shortened(str(result['tool_return']), 120)}"
        self._screen.quietly(line)

    def _show_end(self, reason: str) -> None:
        if sentence := _ENDS.get(reason):
            self._stop_speaking()
            self._screen.complain(sentence)
            self._is_failed = True


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _fields(arguments: str) -> str:
    try:
        fields = json.loads(arguments or "{}")
    except ValueError:
        return shortened(arguments)
    if not isinstance(fields, dict):
        return shortened(arguments)
    return ", ".join(f"{name}={shortened(json.dumps(value, ensure_ascii=False))}" for name, value in fields.items())
