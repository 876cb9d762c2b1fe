"""The meaning of a refusal's text: too long, in any wording, or another error."""

import random
from itertools import product

from ricordo.llm.learned_dialect import NOTHING_LEARNED, LearnedDialect
from ricordo.llm.refusals import Refusal, is_too_long, lessons, limit_in, numbers_in

SIZE, LIMIT = 7_000, 6_000
# Error texts of servers and services; {n} is the size of the request and {limit} the window.
SPELLINGS = {
    "OpenAI": "This model's maximum context length is {limit} tokens. However, your messages resulted "
    "in {n} tokens.",
    "OpenAI, responses": "Your input exceeds the context window of this model. Please adjust your input and try "
    "again.",
    "Anthropic": "prompt is too long: {n} tokens > {limit} maximum",
    "Google": "The input token count ({n}) exceeds the maximum number of tokens allowed ({limit}).",
    "Bedrock": "Input is too long for requested model.",
    "xAI": "This model's maximum prompt length is {limit} but the request contains {n} tokens.",
    "Groq": "Please reduce the length of the messages or completion.",
    "SGLang": "The input ({n} tokens) is longer than the model's context length ({limit} tokens).",
    "vLLM": "The decoder prompt (length {n}) is longer than the maximum model length of {limit}.",
    "llama.cpp": "request ({n} tokens) exceeds the available context size ({limit} tokens), try increasing "
    "it",
    "llama-cpp-python": "Requested tokens ({n}) exceed context window of {limit}",
    "Ollama": "input length ({n} tokens) exceeds the model's maximum context length ({limit} tokens)",
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length "
        "(n_keep: {n}>= n_ctx: {limit}). Try to load the model with a larger context length, or "
        "provide a shorter input."
    ),
    "MiniMax": "invalid params, context window exceeds limit ({limit})",
    "Kimi": "Your request exceeded model token limit: {limit} (requested: {n})",
    "Copilot": "prompt token count of {n} exceeds the limit of {limit}",
    "TGI": "`inputs` tokens + `max_new_tokens` must be <= {limit}. Given: {n} `inputs` tokens and 1 "
    "`max_new_tokens`",
    "ds4": "Prompt tokens ({n}) exceeds context size ({limit})",
    "Zhipu": "Prompt 超长，请缩短输入。最大 {limit}，当前 {n}",
    "DashScope": "Range of input length should be [1, {limit}]",
    "MLX": "Prompt of {n} tokens does not fit into the KV cache of {limit}",
    "TabbyAPI": "Prompt length {n} is greater than max_seq_len {limit}",
    "KoboldCpp": "Your prompt was too big for the context: {n} > {limit}",
    "proxy": "413 Request Entity Too Large",
}
_THINGS = {
    "en": ("prompt", "context", "request with its tokens", "input sequence", "conversation"),
    "de": ("Kontext", "Eingabe", "Anfrage in Token"),
    "fr": ("contexte", "entrée en tokens", "requête"),
    "es": ("contexto", "entrada", "los tokens"),
    "it": ("contesto", "richiesta in token"),
    "pt": ("contexto", "entrada"),
    "ru": ("контекст", "запрос в токенах"),
    "zh": ("上下文", "输入", "请求的 token 数"),
    "ja": ("コンテキスト", "入力", "トークン数"),
    "ko": ("컨텍스트", "입력", "토큰 수"),
}
_EXCESS = {
    "en": (
        "is too long",
        "exceeds the limit",
        "is larger than allowed",
        "overflows",
        "is over the maximum",
    ),
    "de": ("ist zu lang", "überschreitet die Grenze"),
    "fr": ("est trop long", "dépasse la limite"),
    "es": ("es demasiado largo", "supera el límite", "excede el máximo"),
    "it": ("è troppo lungo", "supera il limite"),
    "pt": ("excede o limite", "é demasiado longo"),
    "ru": ("слишком длинный", "превышает предел"),
    "zh": ("超过上限", "过长", "超出最大长度"),
    "ja": ("が長すぎます", "が上限を超えています"),
    "ko": ("초과했습니다", "너무 깁니다", "최대 길이를 넘었습니다"),
}
_SIZES = ("", " ({n} > {limit})", ": {n}/{limit}", " [{limit}]", " (max {limit}, got {n})")


def judged_too_long(
    words: str, *, estimate: int = SIZE, window: int = 128_000, accepted: int = 5_500
) -> bool:
    return is_too_long(words, estimate=estimate, window=window, accepted=accepted)


def test_a_length_refusal_is_recognized_in_every_known_wording() -> None:
    for words in SPELLINGS.values():
        said = words.format(n=SIZE, limit=LIMIT)
        # The server has accepted a request that is nearly as large, or a smaller one.
        assert judged_too_long(said, estimate=5_900), said
        assert judged_too_long(said), said


def test_a_length_refusal_is_recognized_in_many_languages_and_codes() -> None:
    luck = random.Random(5)  # noqa: S311
    count = 0
    for language, things in _THINGS.items():
        for thing, excess in product(things, _EXCESS[language]):
            said = f"{thing} {excess}{luck.choice(_SIZES)}".format(n=SIZE, limit=LIMIT)
            for form in (
                said,
                said.upper(),
                f"E{luck.randint(100, 999)}: {said}",
                said.replace(" ", "_"),
            ):
                count += 1
                assert judged_too_long(form), form
    for code in (
        "CONTEXT_OVERFLOW",
        "ctx_limit",
        "TOKEN_LIMIT_REACHED",
        "PromptTooLong",
        "input_too_large",
        "maxTokensExceeded",
    ):
        assert judged_too_long(code), code
    assert count > 200


def test_without_a_known_word_the_size_decides() -> None:
    for words in ("", "Bad Request", "E1042", "ungültig"):
        assert judged_too_long(words, estimate=120_000), words
        assert not judged_too_long(words, estimate=60_000), words


def test_a_refusal_for_another_reason_does_not_count_as_too_long() -> None:
    others = (
        "Invalid 'tools[0].function.description': string too long. Expected at most 1024 "
        "characters.",
        "Unknown field: foo",
        "temperature must be at most 2",
        "The model does not exist",
    )
    for words in others:
        assert not judged_too_long(words, estimate=2_000, accepted=9_000), words


def test_the_window_named_in_a_refusal_is_read() -> None:
    for name, words in SPELLINGS.items():
        expected = LIMIT if "{limit}" in words else None
        for estimate in (5_500, SIZE):
            assert limit_in(words.format(n=SIZE, limit=LIMIT), estimate=estimate) == expected, name
            separated = words.format(n=f"{SIZE:,}", limit=f"{LIMIT:,}")
            assert limit_in(separated, estimate=estimate) == expected, name


def test_an_impossible_number_is_not_taken_for_the_window() -> None:
    for words in (
        "maximum 12 images",
        "limit of 9999999 tokens",
        "error 400",
        "max 2 system messages",
    ):
        assert limit_in(words, estimate=SIZE) is None, words
    assert numbers_in("1,234 and 5.678.901 of 42 in v2") == [1234, 5678901, 42]


BODY = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {}, "strict": True},
        }
    ],
    "tool_choice": "auto",
    "temperature": 1,
    "user": "ada",
    "chat_template_kwargs": {"enable_thinking": False},
    "stream_options": {"include_usage": True},
}


def first_lesson(answer: str) -> LearnedDialect:
    return next(lessons(Refusal.of(answer, BODY), NOTHING_LEARNED), NOTHING_LEARNED)


def test_the_field_that_an_error_names_is_found_in_every_format() -> None:
    for answer in (
        '{"error": {"message": "no", "param": "temperature", "code": "unsupported_parameter"}}',
        '{"detail": [{"type": "extra_forbidden", "loc": ["body", "temperature"], "msg": "Extra '
        'inputs are not permitted"}]}',
        "Unsupported parameter: 'temperature'",
        "unknown field `temperature`, expected one of `model`",
        '{"message": "property \\"temperature\\" is unsupported"}',
        "temperature is not supported by this model",
        "参数 “temperature” 不支持",
        '{"object": "error", "message": "1 validation error\\ntemperature\\n  extra fields not '
        'permitted"}',
    ):
        assert first_lesson(answer).refused == {("temperature", "")}, answer


def test_roles_and_fields_in_errors_are_distinguished() -> None:
    assert first_lesson("Unexpected role 'user' after role 'tool'").by_turns
    assert first_lesson("chat_template_kwargs is not supported").refused == {
        ("chat_template_kwargs", "")
    }
    assert first_lesson("System role not supported").system_as_user
    assert first_lesson("messages.2.content: Input should be a valid string").no_null
    assert first_lesson("This model does not support tools").takes_no_tools
    assert first_lesson("tools[0].function.strict: unknown field `strict`").refused == {
        ("tools.*.function.strict", "")
    }
