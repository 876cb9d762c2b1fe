"""The marks around a tool call that a model wrote as text: one table of the notations of models' templates, and a rule for others.

The table tells where a call may begin. What is in it is read alike for all of them (see `written_calls.py`), so that a new model
needs a row at most, and none where its mark is a tag that names calls of tools.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notation:
    """A pattern of the marks that open a call, and the models that write them."""

    models: str
    opening: str


# A namespace before a tag's name, as in `<minimax:tool_call>`.
_SPACE = r"(?:[\w-]{1,32}:)?"
NOTATIONS = (
    # The rule for unknown models: any tag whose name says that it holds calls of tools or functions.
    Notation(
        "Hermes, Qwen, GLM, Granite, Hunyuan, Jamba, Nemotron, Olmo, Seed, MiniMax, LongCat, FunctionGemma",
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
# Results of tools as templates write them: a model that writes one has made it up, or copied it.
RESULT = r"<[|｜]?(?:tool|function)s?[_▁](?:response|result|output)s?(?:[_▁]begin)?[|｜]?>|\[TOOL_RESULTS?\]"
# Signs at which a template ends a message or begins the next.
TURN = r"<\|(?:im_start|im_end|eot_id|eom_id|end_of_text|endoftext|end|return|call|message|start_header_id)\|>"

# A mark right behind a backtick is spoken of, though not behind a fence's.
_UNQUOTED = r"(?:(?<!`)|(?<=```))"
# The signs with which a mark can begin: most of a text is passed over by them, five times as fast.
_BEGIN = r"(?=[<\[|｜/acft \t])"
_OPENINGS = "|".join(row.opening for row in NOTATIONS)
CALL_MARK = re.compile(rf"{_BEGIN}{_UNQUOTED}(?:{_OPENINGS})")
RESULT_MARK = re.compile(rf"{_UNQUOTED}(?:{RESULT})")
ANY_MARK = re.compile(rf"{_BEGIN}{_UNQUOTED}(?:{_OPENINGS}|{RESULT}|{TURN})")


def _beginning_of(word: str, least: int = 1) -> str:
    """A pattern for the first letters of a word, `least` of them at least."""
    pattern = ""
    for letter in reversed(word[least:]):
        pattern = f"(?:{letter}{pattern})?"
    return word[:least] + pattern


# The end of a text that may become a mark with the next piece of a stream.
HALF_MARK = re.compile(
    _UNQUOTED
    + r"(?:<[|｜/]{0,3}(?:[\w▁:-]{1,64}[|｜]{0,2}){0,2}(?:[ \t]{1,4}(?:n|na|nam|name|name=)?)?|<tools>\s{0,99}|\[[A-Z_]{0,16}"
    rf"|\b{_beginning_of('functools')}|call:[\w.-]{{0,64}}|[|｜]{{1,2}}[DSML]{{0,4}}[|｜]?"
    r"|(?:assistant)?commentary[ \t]{0,9}(?:to?)?|\bto(?:=[functions]{0,9})?)\Z"
)
# So many characters at the end are looked at for it.
HALF_MARK_LENGTH = 160
# The end of a text that was cut off within a mark.
_CUT_NAMES = "|".join(
    _beginning_of(name, 2)
    for name in ("tool", "function", "invoke", "parameter", "dsml", "minimax:", "seed:", "longcat_")
)
CUT_MARK = re.compile(
    rf"{_UNQUOTED}(?:</?[|｜][\w▁|｜]{{0,64}}|</?(?:{_CUT_NAMES})[\w=:\"|｜ ]{{0,64}}|<tools>\s{{0,99}}|\[TOOL_?[A-Z]{{0,16}}"
    r"|commentary[ \t]{0,9}to=?[functions.]{0,10})\Z"
)
CUT_MARK_LENGTH = 200
