"""The marks around a tool call that a model wrote as text.

One table lists the notations of models' templates. A rule covers unknown notations. The table only
says where a call may begin. `written_calls.py` reads the content of all notations in one way. So a
new model needs one row at most. It needs none if its mark is a tag that names tool calls.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notation:
    """A pattern of the opening marks of a call, and the models that write them."""

    models: str
    opening: str


# A namespace before a tag's name, as in `<minimax:tool_call>`.
_SPACE = r"(?:[\w-]{1,32}:)?"
NOTATIONS = (
    # The rule for unknown models: any tag whose name means calls of tools or functions.
    Notation(
        "Hermes, Qwen, GLM, Granite, Hunyuan, Jamba, Nemotron, Olmo, Seed, MiniMax, LongCat, "
        "FunctionGemma",
        rf"<(?!end){_SPACE}(?i:[a-z]{{0,20}}_?(?:tool|function)s?[_-]?calls?)>",
    ),
    Notation("Qwen's coders", r"<tools>(?=\s{0,99}[{\[])"),
    Notation(
        "DeepSeek V3 and V3.1, Kimi, Step, Granite, Phi, Gemma 4, LFM",
        r"<[|｜](?!\w{0,20}end)tools?[_▁]calls?(?:_section)?(?:[_▁](?:begin|start))?[|｜]?>",
    ),
    Notation("DeepSeek V3.2 and V4", r"<dsml:|<?/?[|｜]{1,2}DSML[|｜]"),
    Notation(
        "Llama, Qwen's coders, Anthropic's older way, MiniMax",
        rf"<{_SPACE}(?:function|invoke|tool)(?:=|\s+name\s*=)",
    ),
    Notation(
        "Llama 3 and 4, InternLM, Command, Apertus",
        r"<\|(?:python_tag|python_start|action_start|START_ACTION|tools_prefix)\|>",
    ),
    Notation("Mistral, LM Studio", r"\[TOOL_(?:CALLS?|REQUEST)\]"),
    Notation("Phi-4-mini", r"\bfunctools(?=\[)"),
    Notation(
        "gpt-oss",
        r"<\|(?:channel|start|constrain)\|>|(?:\bassistant)?(?:commentary)?[ \t]{0,9}\bto=(?=functions\.)",
    ),
    Notation("Gemma 4", r"\bcall:(?=[\w.-]{1,128}\{)"),
)
# Tool results as templates write them. A model that writes a result has invented or copied it.
RESULT = r"<[|｜]?(?:tool|function)s?[_▁](?:response|result|output)s?(?:[_▁]begin)?[|｜]?>|\[TOOL_RESULTS?\]"
# Tokens with which a template ends a message or begins the next.
TURN = r"<\|(?:im_start|im_end|eot_id|eom_id|end_of_text|endoftext|end|return|call|message|start_header_id)\|>"

# A mark right after a backtick is only quoted, except after the three backticks of a fence.
_UNQUOTED = r"(?:(?<!`)|(?<=```))"
# The first characters of all marks: testing these first is five times as fast, since it skips most
# of a text.
_BEGIN = r"(?=[<\[|｜/acft \t])"
_OPENINGS = "|".join(row.opening for row in NOTATIONS)
CALL_MARK = re.compile(rf"{_BEGIN}{_UNQUOTED}(?:{_OPENINGS})")
RESULT_MARK = re.compile(rf"{_UNQUOTED}(?:{RESULT})")
ANY_MARK = re.compile(rf"{_BEGIN}{_UNQUOTED}(?:{_OPENINGS}|{RESULT}|{TURN})")


def _beginning_of(word: str, shortest: int = 1) -> str:
    """Return a pattern for the first letters of a word, at least `shortest` of them."""
    pattern = ""
    for letter in reversed(word[shortest:]):
        pattern = f"(?:{letter}{pattern})?"
    return word[:shortest] + pattern


# The end of a text that may become a mark with the next chunk of a stream.
HALF_MARK = re.compile(
    _UNQUOTED
    + r"(?:<[|｜/]{0,3}(?:[\w▁:-]{1,64}[|｜]{0,2}){0,2}(?:[ \t]{1,4}(?:n|na|nam|name|name=)?)?|<tools>\s{0,99}|\[[A-Z_]{0,16}"
    rf"|\b{_beginning_of('functools')}|call:[\w.-]{{0,64}}|[|｜]{{1,2}}[DSML]{{0,4}}[|｜]?"
    r"|(?:assistant)?commentary[ \t]{0,9}(?:to?)?|\bto(?:=[functions]{0,9})?)\Z"
)
# The number of characters at the end in which HALF_MARK is searched for.
HALF_MARK_LENGTH = 160
# The end of a text that was cut off inside a mark.
_CUT_NAMES = "|".join(
    _beginning_of(name, 2)
    for name in ("tool", "function", "invoke", "parameter", "dsml", "minimax:", "seed:", "longcat_")
)
CUT_MARK = re.compile(
    rf"{_UNQUOTED}(?:</?[|｜][\w▁|｜]{{0,64}}|</?(?:{_CUT_NAMES})[\w=:\"|｜ ]{{0,64}}|<tools>\s{{0,99}}|\[TOOL_?[A-Z]{{0,16}}"
    r"|commentary[ \t]{0,9}to=?[functions.]{0,10})\Z"
)
CUT_MARK_LENGTH = 200
