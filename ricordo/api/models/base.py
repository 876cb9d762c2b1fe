"""What all request and response models share, how an answer is made from its model, and the answers of no noun."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, overload

import orjson
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from ricordo.api.models.warnings import warn
from ricordo.domain.clock import SECOND, to_datetime
from ricordo.domain.passage import LONGEST_TAG, MOST_TAGS
from ricordo.domain.text import normal_json
from ricordo.errors import Unsupported

Json = dict[str, Any]
TextPiece = Annotated[
    str | None, Query(max_length=1000, description="A part of the text to look for.")
]
Tags = Annotated[list[Annotated[str, Field(max_length=LONGEST_TAG)]], Field(max_length=MOST_TAGS)]
# More than any model reads or any block needs, and little enough for every database.
MAX_COUNT = 1_000_000_000
# Messages, passages and other items of one request.
MOST_ITEMS = 1000
T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MOST_ITEMS)]
ONLY_ANSWERED = "Only answers have these fields; they cannot be set."
UNKNOWN = "Unknown here, so without effect."
# As JSON writes it; after an even number of backslashes, else it is text that only looks like one.
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


@overload
def stamp(micros: int) -> str: ...
@overload
def stamp(micros: None) -> None: ...
def stamp(micros: int | None) -> str | None:
    """Return a timestamp as objects carry it: `2026-11-21T20:33:15.123456Z`."""
    if micros is None:
        return None
    seconds, rest = divmod(micros, SECOND)
    return f"{_second(seconds)}.{rest:06d}Z"


def date(micros: int) -> str:
    return to_datetime(micros).isoformat(timespec="seconds")


@lru_cache(1024)
def _second(seconds: int) -> str:
    """Without a zone: what is listed or stored together is often of one second."""
    return to_datetime(seconds * SECOND).isoformat(timespec="seconds").removesuffix("+00:00")


def hex_of(id: bytes | None) -> str | None:
    """Return the id of a version as clients write it."""
    return id.hex() if id else None


def binary(media_type: str) -> dict[int | str, Json]:
    """Return the `responses` of a route that answers with bytes of this type."""
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


def given(**values: Any) -> Json:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


class RequestPart(BaseModel):
    """The base of what requests are made of. An unknown field is refused by name, since what it asks for would not be done.

    Known are also the fields that are `ignored`, and those that only answers have (`take_back`).
    """

    # NaN and Infinity, which some clients write, could be stored, and then no JSON could show them.
    model_config = ConfigDict(
        extra="forbid", protected_namespaces=(), defer_build=True, allow_inf_nan=False
    )
    ignored: ClassVar[Mapping[str, str]] = {}
    """Fields that some version of `letta-client` sends and that change nothing here, each with the reason."""
    only_answered: ClassVar[frozenset[str]] = frozenset()
    """Fields of answers about the same object, which clients send back with it."""

    @classmethod
    def take_back(cls, *answers: type[BaseModel]) -> None:
        """Take such an object as the server answers it too: what cannot be set of it changes nothing."""
        cls.only_answered = cls.only_answered.union(*(answer.model_fields for answer in answers))

    @model_validator(mode="before")
    @classmethod
    def _leave_out_ignored(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        answered = cls.only_answered.intersection(value).difference(
            cls.model_fields, cls.ignored, _aliases(cls)
        )
        ignored = cls.ignored.keys() & value.keys()
        if not (answered or ignored):
            return value
        for name in sorted(ignored):
            if value[name]:
                warn([name], cls.ignored[name])
        if named := [name for name in sorted(answered) if value[name]]:
            warn(named, ONLY_ANSWERED)
        return {
            name: each
            for name, each in value.items()
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
    """A part whose unknown fields are left out with a warning: what clients send there grows with each model.

    A known field with a value that cannot be is refused as everywhere.
    """

    shown_as: ClassVar[str]
    """The name of the part in a request."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        unknown = [
            name for name in value if name not in cls.model_fields and name not in cls.ignored
        ]
        if sent := [
            f"{cls.shown_as}.{str(name)[:80]}" for name in unknown if value[name] is not None
        ]:
            warn(sent, UNKNOWN)
        return {name: each for name, each in value.items() if name not in unknown}


class RequestModel(RequestPart):
    """The base of whole requests, which are checked once with all that they hold."""

    # Its parts are worked out with it, and not each by itself before.
    model_config = ConfigDict(defer_build=False)
    unsupported: ClassVar[tuple[str, ...]] = ()
    """Fields that clients know and this version does not act on: they are refused by name unless they are empty."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Why, where there is more to say than that it is not supported."""

    def refuse_unsupported(self) -> None:
        """Raise Unsupported where the request asks for something this version does not do."""
        for name in self.unsupported:
            if getattr(self, name, None):
                raise Unsupported(
                    f"{self.reasons.get(name, f'{name} is not supported by this version of Ricordo.')} Leave it out."
                )

    @model_validator(mode="before")
    @classmethod
    def _require_storable(cls, value: Any) -> Any:
        """Refuse what JSON may say and no database keeps: halves of characters, NUL, integers beyond 64 bits, endless nesting.

        All other text is brought into the normal form in which everything is stored.
        """
        try:
            text = orjson.dumps(value if isinstance(value, dict) else None)
        except TypeError as error:
            raise ValueError(f"cannot be stored: {error}") from error
        if b"u0000" in text and _NUL.search(text):
            raise ValueError("cannot be stored: it holds a NUL character. Leave it out.")
        # Of plain ASCII only a line end can be in another form, and JSON escapes it.
        is_odd = not text.isascii() or b"\\r" in text
        return normal_json(value) if is_odd and isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class From:
    """Annotates a response's field that is read from an attribute of another name, or is written in another form."""

    path: str | None = None
    convert: Callable[[Any], Any] | None = None


# Where a hosted product keeps an object. There is one project here, and only a template makes an agent its own.
_HOSTED = "project project_id template template_id base_template_id deployment_id entity_id"
IN_ONE_PROJECT = dict.fromkeys(
    _HOSTED.split(),
    "There is one project, and agents are made from templates by a route of their own.",
)


# What clients expect to find and is always empty here.
EmptyList = Annotated[list[Json], Field(default=[])]
Timestamp = Annotated[datetime, From(convert=stamp)]
VersionId = Annotated[str, From(convert=hex_of)]


class ResponseModel(BaseModel):
    """The base of all answers. Nothing is sent that is not declared.

    An answer is made by `of`, as the plain JSON object that the model documents. A block takes 2.2 µs to JSON that way (written
    out by hand: 1.2), 3.3 as an instance without validation, and 7 by `model_construct`.
    """

    # To build the validators of all answers takes a tenth of the start; each is built when the document or a test asks.
    model_config = ConfigDict(
        extra="forbid",
        protected_namespaces=(),
        defer_build=True,
        json_schema_serialization_defaults_required=True,
    )

    @classmethod
    def of(cls, source: object, /, **fields: Any) -> Json:
        """Return the answer made of `fields`, and of the source's attributes of the same names or those that `From` names.

        A field that is another model, or a list of one, is made of what there is for it.
        """
        key = (cls, type(source), *fields)
        recipe = _RECIPES.get(key)
        if recipe is None:
            recipe = _RECIPES[key] = _recipe(cls, source, fields)
        made = recipe.defaults.copy()
        made.update(zip(recipe.names, recipe.read(source), strict=True))
        made.update(fields)
        for name, convert in recipe.conversions:
            made[name] = convert(made[name])
        return made


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How one class of answers is made from one class of sources."""

    names: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]
    defaults: Json
    conversions: tuple[tuple[str, Callable[[Any], Any]], ...]


_RECIPES: dict[tuple[Any, ...], _Recipe] = {}


def _recipe(model: type[ResponseModel], source: object, given: Json) -> _Recipe:
    if unknown := given.keys() - model.model_fields.keys():
        raise TypeError(f"{model.__name__} has no {', '.join(sorted(unknown))}.")
    paths: dict[str, str] = {}
    defaults: Json = {}
    conversions = []
    for name, field in model.model_fields.items():
        marks = list(_marks(field))
        path = next((mark.path for mark in marks if mark.path), name)
        if name not in given:
            if _has(source, path):
                paths[name] = path
            elif field.is_required():
                raise TypeError(
                    f"{model.__name__}.{name} is not given, and {type(source).__name__} has no {path}."
                )
            else:
                defaults[name] = field.default
        if name not in defaults:
            convert = next((mark.convert for mark in marks if mark.convert), None) or maker(
                field.annotation
            )
            conversions += [(name, convert)] if convert else []
    return _Recipe(tuple(paths), _reader(tuple(paths.values())), defaults, tuple(conversions))


def maker(annotation: Any) -> Callable[[Any], Any] | None:
    """Return what makes a value of this type, a model or a list of one; None for a plain type. What is made already stays."""
    if isinstance(annotation, type) and issubclass(annotation, ResponseModel):
        return lambda source: (
            source if source is None or isinstance(source, dict) else annotation.of(source)
        )
    make = next((found for part in get_args(annotation) if (found := maker(part))), None)
    if make and get_origin(annotation) is list:
        return lambda sources: [make(source) for source in sources]
    return make


def or_none(value: Any) -> Any:
    """Return null for what is empty."""
    return value or None


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
    """Fields of a hosted product that clients expect to find; null but for agents that were made from a template."""

    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


class AuthorFields(ResponseModel):
    """Who made an object, and who changed it last."""

    created_by_id: Annotated[str | None, From("created_by")]
    last_updated_by_id: Annotated[str | None, From("updated_by"), Field(default=None)]


class HealthResponse(ResponseModel):
    """The server answers."""

    version: str
    status: Literal["ok"] = "ok"


class NoteResponse(ResponseModel):
    """What was done, in a sentence."""

    message: str


class ModelFailure(ResponseModel):
    """How a model's provider failed; of the routes that OpenAI's clients call, why a request was refused."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    type: str
    message: str
    detail: str | None = None
    param: str | None = None
    code: str | None = None


class TextConflict(ResponseModel):
    """Texts that collide: what both sides began with, the current text, and the one to be written; null where gone."""

    proposal_id: str | None
    base: str | None
    ours: str | None
    theirs: str | None
    how: str


class FaultResponse(ResponseModel):
    """What is wrong at one place of a request."""

    loc: list[str | int]
    msg: str


class RefusalResponse(ResponseModel):
    """Why a request was refused. A provider's failure is under `error` alone."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    detail: str | None = None
    trace_id: str | None = None
    errors: list[FaultResponse] | None = None
    examples: list[str] | None = None
    run_id: str | None = None
    error: ModelFailure | None = None
    conflict: TextConflict | None = None
