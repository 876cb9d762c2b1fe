"""The base of all request and response models, and common answers."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from ricordo.api.models.warnings import warn
from ricordo.domain.clock import stamp, to_datetime
from ricordo.domain.passage import LONGEST_TAG, MOST_TAGS
from ricordo.domain.text import MOST_LEVELS, Json, encoded_json, normal_json, storable_json
from ricordo.errors import Unsupported

TextPiece = Annotated[
    str | None, Query(max_length=1000, description="A part of the text to look for.")
]
Tags = Annotated[list[Annotated[str, Field(max_length=LONGEST_TAG)]], Field(max_length=MOST_TAGS)]
# The largest number of tokens or characters. It is more than any model or block needs, and fits
# both databases.
MAX_COUNT = 1_000_000_000
# Messages, passages and other items of one request.
MOST_ITEMS = 1000
T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MOST_ITEMS)]
ONLY_ANSWERED = "Only answers have these fields; they cannot be set."
UNKNOWN = "Unknown here, so without effect."
# A NUL that is escaped in JSON. If its backslash is itself escaped, it is plain text.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def date(micros: int) -> str:
    """Return the time in ISO 8601 without fractions of seconds, in UTC.

    Args:
        micros: The time in microseconds since 1970, UTC.
    """
    return to_datetime(micros).isoformat(timespec="seconds")


def hex_of(id: bytes | None) -> str | None:
    """Return a version's id as clients write it.

    Args:
        id: The 20 bytes of a version's id, or None.
    """
    return id.hex() if id else None


def binary(media_type: str) -> dict[int | str, Json]:
    """Return the `responses` of a route that answers with bytes of this type.

    Args:
        media_type: The Content-Type of the answer, for the OpenAPI document.
    """
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


def without_none(**fields: Any) -> Json:
    """Return the fields that are not None."""
    return {name: field for name, field in fields.items() if field is not None}


class RequestPart(BaseModel):
    """The base of all parts of requests.

    An unknown field is refused by name, because it would have no effect. Fields in `ignored` are
    accepted without effect. So are fields of answers that clients send back (`take_back`).
    """

    # `allow_inf_nan`: some clients write NaN and Infinity, which could be stored but could not be
    # shown as JSON. `defer_build`: each model's validator is built when a request first needs it.
    # To build them all would take a tenth of the time of a server's start.
    model_config = ConfigDict(
        extra="forbid", protected_namespaces=(), defer_build=True, allow_inf_nan=False
    )
    ignored: ClassVar[Mapping[str, str]] = {}
    """Fields of some versions of `letta-client` that have no effect here, each with the reason."""
    only_answered: ClassVar[frozenset[str]] = frozenset()
    """Fields of answers about the same object, which clients may send back."""

    @classmethod
    def take_back(cls, *answers: type[BaseModel]) -> None:
        """Accept an object of this kind as the server answered it.

        Fields that only its answers have change nothing.

        Args:
            *answers: Response models of the same object.
        """
        cls.only_answered = cls.only_answered.union(*(answer.model_fields for answer in answers))

    @model_validator(mode="before")
    @classmethod
    def _leave_out_ignored(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        answered = cls.only_answered.intersection(body).difference(
            cls.model_fields, cls.ignored, _aliases(cls)
        )
        ignored = cls.ignored.keys() & body.keys()
        if not (answered or ignored):
            return body
        for name in sorted(ignored):
            if body[name]:
                warn([name], cls.ignored[name])
        if names := [name for name in sorted(answered) if body[name]]:
            warn(names, ONLY_ANSWERED)
        return {
            name: field
            for name, field in body.items()
            if name not in answered and name not in ignored
        }


@cache
def _aliases(model: type[BaseModel]) -> frozenset[str]:
    """Return the other names of a request's fields."""
    choices = [
        getattr(field.validation_alias, "choices", ()) for field in model.model_fields.values()
    ]
    return frozenset(name for names in choices for name in names)


class TolerantPart(RequestPart):
    """A part of a request whose unknown fields are dropped with a warning.

    New models may have new fields. An impossible value of a known field is refused.
    """

    shown_as: ClassVar[str]
    """The name of the part in a request."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        unknown = [
            name for name in body if name not in cls.model_fields and name not in cls.ignored
        ]
        names = [f"{cls.shown_as}.{str(name)[:80]}" for name in unknown if body[name] is not None]
        if names:
            warn(names, UNKNOWN)
        return {name: field for name, field in body.items() if name not in unknown}


class ForeignPart(RequestPart):
    """A part of a request in another program's protocol, with names in camel case.

    Its unknown fields are ignored, since the protocol has more than is used here.
    """

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True)


class RequestModel(RequestPart):
    """The base of whole requests, which are checked once with all their parts."""

    unsupported: ClassVar[tuple[str, ...]] = ()
    """Fields of clients that are not supported here. They are refused by name if they are not
    empty."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Special reasons for a refused field, by its name."""
    replaces_unstorable: ClassVar[bool] = False
    """Whether a value that no database can store is replaced instead of refused. It is for clients
    that send a whole history: they would send a refused value again with each later request."""

    def refuse_unsupported(self) -> None:
        """Raise Unsupported if the request uses an unsupported field."""
        for name in self.unsupported:
            if getattr(self, name, None):
                reason = self.reasons.get(
                    name, f"{name} is not supported by this version of Ricordo."
                )
                raise Unsupported(f"{reason} Leave it out.")

    @model_validator(mode="before")
    @classmethod
    def _require_storable(cls, body: Any) -> Any:
        """Refuse or replace JSON that no database can store, and normalize all other text.

        No database can store lone surrogates, NUL, integers beyond 64 bits, and deep nesting.
        """
        if not isinstance(body, dict):
            return body
        try:
            text = encoded_json(body)
        except TypeError as error:
            fault = f"cannot be stored: {error}. At most {MOST_LEVELS} levels are allowed."
            return cls._replaced(body, fault)
        if b"u0000" in text and _NUL.search(text):
            return cls._replaced(body, "cannot be stored: it holds a NUL character. Leave it out.")
        # Plain ASCII needs no normalizing, except of line ends, which JSON escapes.
        return normal_json(body) if not text.isascii() or b"\\r" in text else body

    @classmethod
    def _replaced(cls, body: Json, fault: str) -> Json:
        """Return the body with replacements for what cannot be stored, if the class allows it.

        Raises:
            ValueError: with the fault, if values are not replaced here, or if no replacement helps.
        """
        if not cls.replaces_unstorable:
            raise ValueError(fault)
        stored = storable_json(body)
        try:
            encoded_json(stored)
        except TypeError as error:
            raise ValueError(fault) from error
        return dict(normal_json(stored))


class ForeignRequest(RequestModel):
    """The base of whole requests in another program's protocol (see `ForeignPart`)."""

    model_config = ForeignPart.model_config
    replaces_unstorable = True


@dataclass(frozen=True, slots=True)
class From:
    """The source of a response's field: an attribute with another name, or a conversion."""

    path: str | None = None
    convert: Callable[[Any], Any] | None = None


# Fields for the location of an object in a hosted product. This server has one project, so only
# agents that were created from a template have values here.
_HOSTED = "project project_id template template_id base_template_id deployment_id entity_id"
IN_ONE_PROJECT = dict.fromkeys(
    _HOSTED.split(),
    "There is one project, and another route creates agents from templates.",
)


# Lists that clients expect and that are always empty here.
EmptyList = Annotated[list[Json], Field(default=[])]
Timestamp = Annotated[datetime, From(convert=stamp)]
VersionId = Annotated[str, From(convert=hex_of)]


def often_absent(*names: str) -> ConfigDict:
    """Return the config of a stored answer that may lack these fields.

    The OpenAPI document lists all other fields of an answer as required.

    Args:
        *names: Names of fields of the response model.
    """

    def describe(schema: dict[str, Any]) -> None:
        schema["required"] = [name for name in schema.get("required", ()) if name not in names]

    return ConfigDict(json_schema_extra=describe)


class ResponseModel(BaseModel):
    """The base of all answers. Only declared fields are sent.

    `of` returns the plain JSON object that the model describes. It takes 2.2 µs to convert a block
    to JSON. Code by hand would take 1.2 µs, an instance without validation 3.3, and
    `model_construct` 7.
    """

    # Building the validators of all answers takes a tenth of the time of a server's start. So each
    # is built when the OpenAPI document or a test needs it.
    model_config = ConfigDict(
        extra="forbid",
        protected_namespaces=(),
        defer_build=True,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def of(cls, source: object, /, **fields: Any) -> Json:
        """Return the answer that consists of `fields` and of the source's attributes.

        An attribute has the field's name, or the name in `From`. A field that is another model, or
        a list of one, is made from its source in the same way.

        Args:
            source: The object with the values; None if `fields` has them all.
            **fields: Values that replace those of the source.

        Raises:
            TypeError: A field has no value, or the model lacks a field. It is a fault of the
                caller.
        """
        key = (cls, type(source), *fields)
        recipe = _RECIPES.get(key)
        if recipe is None:
            recipe = _RECIPES[key] = _recipe(cls, source, fields)
        answer = recipe.defaults.copy()
        answer.update(zip(recipe.names, recipe.read(source), strict=True))
        answer.update(fields)
        for name, convert in recipe.conversions:
            answer[name] = convert(answer[name])
        return answer


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A recipe for making answers of one class from sources of one class."""

    names: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]
    defaults: Json
    conversions: tuple[tuple[str, Callable[[Any], Any]], ...]


_RECIPES: dict[tuple[Any, ...], _Recipe] = {}


def _recipe(model: type[ResponseModel], source: object, fields: Json) -> _Recipe:
    if unknown := fields.keys() - model.model_fields.keys():
        raise TypeError(f"{model.__name__} has no {', '.join(sorted(unknown))}.")
    paths: dict[str, str] = {}
    defaults: Json = {}
    conversions = []
    for name, field in model.model_fields.items():
        marks = list(_marks(field))
        path = next((mark.path for mark in marks if mark.path), name)
        if name not in fields:
            if _has(source, path):
                paths[name] = path
            elif field.is_required():
                raise TypeError(
                    f"{model.__name__}.{name} is missing, and {type(source).__name__} has no "
                    f"{path}."
                )
            else:
                defaults[name] = field.default
        if name not in defaults:
            convert = next((mark.convert for mark in marks if mark.convert), None)
            convert = convert or maker(field.annotation)
            if convert:
                conversions.append((name, convert))
    return _Recipe(tuple(paths), _reader(tuple(paths.values())), defaults, tuple(conversions))


def maker(annotation: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes values of this type: a model or a list of one.

    Answers that are already made are returned unchanged.

    Args:
        annotation: The type of a field of a response model.

    Returns:
        The function; None for a plain type.
    """
    if isinstance(annotation, type) and issubclass(annotation, ResponseModel):
        return lambda source: (
            source if source is None or isinstance(source, dict) else annotation.of(source)
        )
    make = next(filter(None, map(maker, get_args(annotation))), None)
    if make and get_origin(annotation) is list:
        return lambda sources: [make(source) for source in sources]
    return make


def or_none(content: Any) -> Any:
    """Return null for empty content.

    Args:
        content: A value such as "" or [].
    """
    return content or None


def _marks(field: FieldInfo) -> Iterator[From]:
    inner = (
        mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ())
    )
    return (mark for mark in (*field.metadata, *inner) if isinstance(mark, From))


def _has(source: object, path: str) -> bool:
    try:
        attrgetter(path)(source)
    except AttributeError:
        return False
    return True


def _reader(paths: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(paths) > 1:
        return attrgetter(*paths)
    return lambda source: tuple(attrgetter(path)(source) for path in paths)


class HostedFields(ResponseModel):
    """Fields of a hosted product that clients expect.

    They are null except for agents of templates.
    """

    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


class AuthorFields(ResponseModel):
    """The author of an object and of its last change."""

    created_by_id: Annotated[str | None, From("created_by")]
    last_updated_by_id: Annotated[str | None, From("updated_by"), Field(default=None)]


class HealthResponse(ResponseModel):
    """The state and the version of the server."""

    version: str
    status: Literal["ok"] = "ok"


class NoteResponse(ResponseModel):
    """The result of a request, as a sentence."""

    message: str


class ModelFailure(ResponseModel):
    """The failure of a model's provider, or a refusal, in the form that OpenAI's clients expect."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    type: str
    message: str
    detail: str | None = None
    param: str | None = None
    code: str | None = None


class TextConflict(ResponseModel):
    """Texts that collide.

    `base` is the text that both sides started from, `ours` the current text, `theirs` the text to
    be written; null means deleted.
    """

    proposal_id: str | None
    base: str | None
    ours: str | None
    theirs: str | None
    how: str


class FaultResponse(ResponseModel):
    """A fault in a request, with its location."""

    loc: list[str | int]
    msg: str


class RefusalResponse(ResponseModel):
    """The reason why a request is refused. A provider's failure has only `error`."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    detail: str | None = None
    trace_id: str | None = None
    errors: list[FaultResponse] | None = None
    examples: list[str] | None = None
    run_id: str | None = None
    error: ModelFailure | None = None
    conflict: TextConflict | None = None
