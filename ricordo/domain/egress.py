"""Egress: which destinations outside of this server may see a stored text.

A policy is a set of names: providers of models, kinds of tools, or "local". A text may have several
sources, each with a policy. Its label has a clause for each policy, except those that a stricter
clause implies. The label is stored with the text as one string: ";" separates clauses, and ","
separates the sorted names in a clause. A destination may see the text if every clause allows it. No
label (None) means no limit.

`Clearance` is the one class that decides. It knows the labelled texts that a turn has read. From
messages and texts it removes the parts that a destination may not see.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson

from ricordo.domain.message import (
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from ricordo.errors import Invalid

LOCAL = "local"
NOBODY_AT_ALL = "nobody"
"""The clause of an empty policy. It allows no destination, whatever its name."""
BUILT_IN = "ricordo"
"""The provider of models that run in this process."""
LOCAL_ADDRESSES = (
    "localhost, 127.0.0.0/8, ::1, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7, fe80::/10"
)
MOST_NAMES = 30
MOST_CLAUSES = 100
ONLY_OWNER = (
    "Only the owner may let more destinations see this. Everybody else who may change it can make "
    "its egress policy stricter."
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.:-]{0,99}")
# Ollama sends requests for models with this ending on to ollama.com.
_HOSTED_BY_OLLAMA = re.compile(r"[:-]cloud$")
LABEL = r"^[a-z0-9][a-z0-9_.:-]*([,;][a-z0-9][a-z0-9_.:-]*)*$"
"""The pattern of a label."""
_WORD = re.compile(r"\w+")
_JOINTS = "-_.@:/+"
_BULLET = re.compile(r"^[\s>*+#•\-–—]+|^\s*\d{1,3}[.)]\s+")
# Characters. Texts are not searched for shorter lines, since these occur in many texts.
SHORTEST_LINE = 8
# This number of consecutive words of a line identifies a labelled text (`LabelledText.marks`).
RUN = 4
# One word with a digit, or one long word, is enough too: a number, an address, a key.
_SHORTEST_NUMBER = 5
_SHORTEST_RARE_WORD = 16
_SHORTEST_JOINED = 6


@dataclass(frozen=True, slots=True)
class Destination:
    """A receiver of texts: the name of a provider or of a kind of tool.

    `is_local`: the receiver is on this machine or in its network.
    """

    name: str
    is_local: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names by which a policy can allow it, such as "mcp:school" and "mcp"."""
        # A provider or tool may be named "local" or "nobody". These words keep their meaning.
        names = {self.name, _kind_of(self.name)} - {LOCAL, NOBODY_AT_ALL}
        if self.is_local:
            names.add(LOCAL)
        return frozenset(names)


def _kind_of(name: str) -> str:
    return name.partition(":")[0]


IN_PROCESS = Destination(BUILT_IN, is_local=True)


class ServedModel(Protocol):
    """A model at a provider."""

    @property
    def provider(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> str | None:
        """The URL of the provider; None for a model in this process or of a plugin."""
        ...


@dataclass(frozen=True)
class LocalNetworks:
    """The addresses that count as local: networks, and names of hosts.

    Names are compared and never looked up, since the owner of a name can change its address.
    """

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    hosts: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> "LocalNetworks":
        """Parse a setting: networks and hosts, separated by commas.

        Args:
            text: The value of the setting. An entry that is no network counts as the name of a
                host.
        """
        networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        hosts: set[str] = set()
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                hosts.add(entry)
        return cls(tuple(networks), frozenset(hosts))

    def holds(self, address: str | None) -> bool:
        """Return whether the host of this URL is local.

        Args:
            address: The URL; None, or a text that is no URL, is not local.
        """
        try:
            host = (urlsplit(address or "").hostname or "").rstrip(".").lower()
            if host in self.hosts:
                return True
            number = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = getattr(number, "ipv4_mapped", None)
        number = mapped or number
        return any(
            number.version == network.version and number in network for network in self.networks
        )

    def of_model(self, info: ServedModel) -> Destination:
        """Return the destination of a model's calls.

        Args:
            info: The model. Its provider names the destination, and the host of its endpoint
                decides whether that is local. Without an endpoint, only models in this process are
                local. Ollama forwards requests for some models to its hosted servers, so these are
                not local.
        """
        is_local = info.provider == BUILT_IN or self.holds(info.endpoint)
        if info.provider == "ollama" and _HOSTED_BY_OLLAMA.search(info.name):
            is_local = False
        return Destination(info.provider, is_local)


DEFAULT_NETWORKS = LocalNetworks.parse(LOCAL_ADDRESSES)


def label_of(names: Iterable[str] | None) -> str | None:
    """Return the label of one policy; None without a policy.

    Args:
        names: The names of the destinations that the policy allows. [] allows none. None stands
            for no policy.

    Raises:
        Invalid: for too many names, or a name that cannot be a destination.
    """
    if names is None:
        return None
    distinct = sorted({name.strip().lower() for name in names})
    if len(distinct) > MOST_NAMES:
        raise Invalid(f"An egress policy may name at most {MOST_NAMES} destinations.")
    for name in distinct:
        if not _NAME.fullmatch(name) or name == NOBODY_AT_ALL:
            raise Invalid(
                f'"{name[:80]}" is not a name of a provider. Use names such as "openai", or '
                '"local" for models on this machine or its network. An empty list allows no '
                "provider."
            )
    return ",".join(distinct) or NOBODY_AT_ALL


def names_of(label: str | None) -> list[list[str]]:
    """Return the names in each clause of a label.

    Args:
        label: The egress label of a text; None or "" has no clause.

    Returns:
        A list for each clause; an empty list for the clause that allows nothing.
    """
    clauses = label.split(";") if label else []
    return [[] if clause == NOBODY_AT_ALL else clause.split(",") for clause in clauses]


def allowed_names(label: str | None) -> list[str] | None:
    """Return the names that every clause of a label allows.

    The clause "mcp" also allows a single server, such as "mcp:school".

    A text that was imported or migrated may have several policies, which all count.

    Args:
        label: The egress label of a text; None or "" for a text without a policy.

    Returns:
        The sorted names; None without a label. [] if no name is in all clauses.
    """
    if not label:
        return None
    clauses = names_of(label)
    names = {name for clause in clauses for name in clause}
    return sorted(name for name in names if all(_covers(clause, name) for clause in clauses))


def _covers(clause: Iterable[str], name: str) -> bool:
    """Return whether a clause allows all destinations that this name allows."""
    # As in `Destination.names`, "local" is no kind: a provider "local:mine" may be anywhere.
    kinds = {_kind_of(name)} - {LOCAL}
    return not {name, *kinds}.isdisjoint(clause)


def shared_label(labels: Iterable[str | None]) -> str | None:
    """Return the loosest of these labels, if all others are at least as strict.

    >>> shared_label(["local", "local;openai"])
    'local'
    >>> shared_label(["local", None])

    Args:
        labels: The labels of texts; None for a text without a policy.

    Returns:
        The label; None if there is no such label.
    """
    distinct = list(dict.fromkeys(labels))
    return next(
        (label for label in distinct if all(is_as_strict(other, label) for other in distinct)), None
    )


def read_label(value: Any) -> str | None:
    """Return the label in a file of an unknown author; None if it has none.

    A name that is unknown here stays, so the text stays limited. A value that is no label allows no
    destination.

    >>> read_label("OpenAI,local")
    'local,openai'
    >>> read_label(["local"])
    'nobody'

    Args:
        value: The value in the file, of any type; None for a text without a policy.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        return NOBODY_AT_ALL
    return join(*(_read_clause(clause) for clause in value.split(";", MOST_CLAUSES)))


def _read_clause(clause: str) -> str:
    try:
        return label_of(clause.split(",")) or NOBODY_AT_ALL
    except Invalid:
        return NOBODY_AT_ALL


def join(*labels: str | None) -> str | None:
    """Return the label of a text whose sources have these labels.

    Args:
        *labels: The label of each source; None or "" for a source without a policy.
    """
    clauses = {clause for label in labels if label for clause in label.split(";")}
    if not clauses:
        return None
    sets = {clause: frozenset(clause.split(",")) - {NOBODY_AT_ALL} for clause in clauses}
    # A clause adds nothing if another clause is a part of it.
    needed = [
        clause for clause in clauses if not any(sets[other] < sets[clause] for other in clauses)
    ]
    return ";".join(sorted(needed))


def permits(label: str | None, destination: Destination) -> bool:
    """Return whether the destination may see a text with this label.

    Args:
        label: The egress label of the text; None or "" limits nothing.
        destination: The receiver.
    """
    if not label:
        return True
    names = destination.names
    return all(not names.isdisjoint(clause.split(",")) for clause in label.split(";"))


def is_as_strict(label: str | None, than: str | None) -> bool:
    """Return whether `than` also allows every destination that `label` allows.

    Args:
        label: The label to examine; None allows all destinations.
        than: The label that it is compared with; None allows all destinations.
    """
    clauses = names_of(label)
    return all(
        any(all(_covers(needed, name) for name in clause) for clause in clauses)
        for needed in names_of(than)
    )


def counted_lines(text: str) -> int:
    """Return the number of lines that are not blank.

    Args:
        text: The text that is withheld.
    """
    return sum(bool(line.strip()) for line in text.split("\n"))


def notice(count: int, unit: str, destination: Destination) -> str:
    """Return the notice that replaces withheld parts, for example of 2 lines.

    Args:
        count: The number of withheld parts.
        unit: Their noun in the singular, such as "line".
        destination: The receiver from which they are withheld.
    """
    plural = "" if count == 1 else "s"
    return f"[{count} {unit}{plural} withheld from {destination.name} by an egress policy]"


def normal_line(text: str) -> str:
    """Return the words of a line in lower case, without bullet and punctuation.

    Args:
        text: One line of a text, or a whole text.
    """
    return " ".join(_WORD.findall(_BULLET.sub("", text).casefold()))


@dataclass(frozen=True)
class LabelledText:
    """A text that a turn has read, with its label and the name of its source."""

    source: str
    label: str
    text: str

    def lines(self) -> frozenset[str]:
        """Return its lines in normal form, and the values of lines such as "name: value".

        Lines and values of fewer than `SHORTEST_LINE` characters are left out.
        """
        lines: set[str] = set()
        for line in self.text.split("\n"):
            for part in (line, line.partition(": ")[2]):
                normal = normal_line(part)
                if len(normal) >= SHORTEST_LINE:
                    lines.add(normal)
        return frozenset(lines)

    def marks(self) -> frozenset[str]:
        """Return the phrases that identify the text.

        They are its lines, runs of words, rare words, pairs of numbers, and words with signs
        inside.
        """
        marks = set(self.lines())
        for line in self.text.split("\n"):
            words = normal_line(line).split()
            marks.update(" ".join(words[at : at + RUN]) for at in range(len(words) - RUN + 1))
            marks.update(word for word in words if _is_rare(word))
            marks.update(
                f"{word} {following}"
                for word, following in pairwise(words)
                if _has_digit(word) and _has_digit(following)
            )
            # Words with signs inside, such as addresses, handles and codes.
            marks.update(
                normal_line(name) for name in map(_without_edges, line.split()) if _is_joined(name)
            )
        return frozenset(marks)


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    """The lines `lines[start:end]` of a text, with their label and the name of their field."""

    name: str
    label: str
    start: int
    end: int


def _has_digit(word: str) -> bool:
    return any(sign.isdigit() for sign in word)


def _without_edges(name: str) -> str:
    return name.strip(".,;:!?()[]{}<>\"'`*_-/+")


def _is_joined(name: str) -> bool:
    return len(name) >= _SHORTEST_JOINED and any(sign in _JOINTS for sign in name)


def _is_rare(word: str) -> bool:
    if len(word) >= _SHORTEST_RARE_WORD:
        return True
    return len(word) >= _SHORTEST_NUMBER and _has_digit(word)


@dataclass(slots=True)
class Clearance:
    """The decision on what outgoing calls may contain, and a record of it.

    A turn, or another piece of work, has one clearance.

    Attributes:
        networks: The addresses that count as local.
        texts: The labelled texts among the sources, shown or withheld.
        exempt: Ids of messages that the user wrote for this turn. They reach the model even if they
            repeat a labelled text, since the user decided to send them.
        label: The label of everything that was shown. New texts get it.
        shown: The names of the labelled sources that were shown.
        withheld: The number of withheld lines, by the name of their source. A message of which only
            some lines were withheld counts as 1.
    """

    networks: LocalNetworks = DEFAULT_NETWORKS
    texts: list[LabelledText] = field(default_factory=list)
    exempt: frozenset[str] = frozenset()
    label: str | None = None
    shown: set[str] = field(default_factory=set)
    withheld: dict[str, int] = field(default_factory=dict)
    _marks: dict[str, frozenset[str]] = field(default_factory=dict)

    def show(self, source: str, label: str | None, text: str = "") -> None:
        """Record a labelled source that is shown to a permitted model.

        Args:
            source: The name of the source, such as `message:<id>`.
            label: Its egress label; None or "" records nothing.
            text: Its text, so that texts that repeat it are recognized; "" if only the label
                counts.
        """
        if label:
            self.label = join(self.label, label)
            self.shown.add(source)
            self.know(source, label, text)

    def may_read(
        self, destination: Destination, source: str, label: str | None, text: str = ""
    ) -> bool:
        """Record a labelled text, and return whether the destination may see it.

        Args:
            destination: The receiver of the text.
            source: The name of the text's source, such as `message:<id>`.
            label: The egress label of the text; None: no limit, and nothing is recorded.
            text: The text; "" if only the label counts.
        """
        if label is None:
            return True
        if permits(label, destination):
            self.show(source, label, text)
            return True
        self.withhold(source, label, text)
        return False

    def know(self, source: str, label: str | None, text: str) -> None:
        """Record a labelled text, so that texts that repeat it are recognized.

        Args:
            source: The name of the text's source, such as `message:<id>`.
            label: The egress label of the text; None or "" records nothing.
            text: The text; a blank one is not recorded.
        """
        if label and text.strip():
            entry = LabelledText(source, label, text)
            if entry not in self.texts:
                self.texts.append(entry)

    def withhold(self, source: str, label: str, text: str) -> None:
        """Record a source that was withheld.

        Args:
            source: The name of the source, such as `message:<id>`.
            label: Its egress label.
            text: Its text, whose lines that are not blank are counted (at least 1).
        """
        self.withheld[source] = counted_lines(text) or 1
        self.know(source, label, text)

    def messages(self, messages: Sequence[Message], destination: Destination) -> Sequence[Message]:
        """Return the messages as this destination may see them.

        If a message's label forbids the destination, a notice replaces the message's texts. The
        message keeps its role and its calls, so that the transcript stays valid. In other messages,
        notices replace the lines that repeat a forbidden text. Messages in `exempt` stay unchanged.

        Args:
            messages: The messages, which are not changed. Shown and withheld ones are recorded.
            destination: The receiver.
        """
        if not self.texts and not [message for message in messages if message.egress]:
            return messages
        forbidden = self._forbidden_lines(destination)
        cleared: list[Message] = []
        for message in messages:
            is_exempt = message.id in self.exempt
            if not is_exempt and not permits(message.egress, destination):
                self.withheld[f"message:{message.id}"] = counted_lines(_text_of(message)) or 1
                cleared.append(_withheld(message, destination))
                continue
            if message.egress:
                # An agent's phrases occur in many texts, so its answers are not recorded as texts.
                # Their sources are.
                text = "" if message.role == "assistant" else _text_of(message)
                self.show(f"message:{message.id}", message.egress, text)
            if forbidden and not is_exempt:
                cleared.append(self._without_lines(message, forbidden, destination))
            else:
                cleared.append(message)
        return cleared

    def text(self, text: str, destination: Destination) -> str:
        """Return the text with notices instead of the lines that repeat a forbidden text.

        Args:
            text: The text, which is not recorded.
            destination: The receiver.
        """
        forbidden = self._forbidden_lines(destination)
        return _without(text, forbidden, destination) if forbidden else text

    def repeats(self, text: str, destination: Destination) -> str | None:
        """Return the source of a forbidden text that this text repeats, or None.

        One of its marks (`LabelledText.marks`) is enough, such as a line, four consecutive words,
        or a rare word.

        Args:
            text: The text that would be sent.
            destination: The receiver, which decides which texts are forbidden.
        """
        for entry in self.texts:
            if not permits(entry.label, destination) and self._repeats(entry, text):
                return entry.source
        return None

    def with_labels(self, message: Message) -> Message:
        """Return a person's message with the labels of the texts that it repeats.

        Args:
            message: The message, which is not changed. Its label stays, and others are added.
        """
        text = _text_of(message)
        labels = [entry.label for entry in self.texts if self._repeats(entry, text)]
        return replace(message, egress=join(message.egress, *labels)) if labels else message

    def spills(self, text: str, label: str | None) -> str | None:
        """Return the source of a text that this text repeats under a looser label, or None.

        Args:
            text: The text that is to be stored.
            label: The egress label under which it is to be stored; None for no limit.
        """
        for entry in self.texts:
            if not is_as_strict(label, entry.label) and self._repeats(entry, text):
                return entry.source
        return None

    def spills_in_name(self, name: str) -> str | None:
        """Return the source of a labelled text that this name repeats, or None.

        Every model sees the names of stored things, such as labels and tags.

        Args:
            name: The name, such as a label or a tag. It is searched as it is, and with "_" read as
                a space.
        """
        return self.spills(f"{name}\n{name.replace('_', ' ')}", None)

    def record(self, destination: Destination) -> dict[str, Any]:
        """Return the record of a step: destination, shown and withheld sources.

        Args:
            destination: The receiver of the step's request.

        Returns:
            JSON; {} if no source had a policy.
        """
        if self.label is None and not self.texts and not self.withheld:
            return {}
        return {
            "destination": destination.name,
            "is_local": destination.is_local,
            "shown": sorted(self.shown),
            "withheld": dict(sorted(self.withheld.items())),
            "label": names_of(self.label),
        }

    def _repeats(self, entry: LabelledText, text: str) -> bool:
        marks = self._marks.get(entry.text)
        if marks is None:
            marks = self._marks[entry.text] = entry.marks()
        normal = f" {normal_line(_decoded(text))} "
        return any(f" {mark} " in normal for mark in marks)

    def _forbidden_lines(self, destination: Destination) -> frozenset[str]:
        return frozenset().union(
            *(entry.lines() for entry in self.texts if not permits(entry.label, destination))
        )

    def _without_lines(
        self, message: Message, forbidden: frozenset[str], destination: Destination
    ) -> Message:
        parts = tuple(_part_without(part, forbidden, destination) for part in message.parts)
        if all(new is old for new, old in zip(parts, message.parts, strict=True)):
            return message
        self.withheld[f"message:{message.id}"] = 1
        return replace(message, parts=parts)


def _text_of(message: Message) -> str:
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    texts += [part.content for part in message.tool_returns]
    texts += filter(None, [message.picture_text])
    return "\n".join(texts)


def _withheld(message: Message, destination: Destination) -> Message:
    """Return the message with a notice instead of its texts and pictures."""
    sentence = notice(1, "message", destination)
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCallPart():
                parts.append(replace(part, arguments="{}"))
            case ToolReturnPart():
                parts.append(_return_with(part, sentence))
            case TextPart() if not any(isinstance(done, TextPart) for done in parts):
                parts.append(TextPart(sentence))
            case _:
                pass  # Only calls and results must stay.
    has_text = any(isinstance(part, TextPart | ToolCallPart | ToolReturnPart) for part in parts)
    if not has_text:
        parts.insert(0, TextPart(sentence))
    return replace(message, parts=tuple(parts), egress=None)


def _return_with(part: ToolReturnPart, content: str) -> ToolReturnPart:
    return replace(part, content=content, is_json=False, stdout=(), stderr=(), pictures=())


def _part_without(part: Part, forbidden: frozenset[str], destination: Destination) -> Part:
    match part:
        case TextPart():
            text = _without(part.text, forbidden, destination)
            return part if text is part.text else replace(part, text=text, signature=None)
        case ReasoningPart():
            text = _without(part.text, forbidden, destination)
            return part if text is part.text else TextPart(text)
        case ToolCallPart():
            kept = _without(_decoded(part.arguments), forbidden, destination)
            is_clean = kept == _decoded(part.arguments)
            return part if is_clean else replace(part, arguments="{}")
        case ToolReturnPart():
            source = _decoded(part.content) if part.is_json else part.content
            text = _without(source, forbidden, destination)
            is_clean = text is source and not any(
                _shows(picture, forbidden) for picture in part.pictures
            )
            return part if is_clean else _return_with(part, text)
        case ImagePart() if _shows(part, forbidden):
            return TextPart(notice(1, "picture", destination))
        case _:
            return part


def _shows(picture: ImagePart, forbidden: frozenset[str]) -> bool:
    return _repeats(picture.text or "", forbidden)


def _without(text: str, forbidden: frozenset[str], destination: Destination) -> str:
    """Return the text with a notice instead of each line that repeats a forbidden one."""
    if not _repeats(text, forbidden):
        return text
    lines = [
        notice(1, "line", destination) if _repeats(line, forbidden) else line
        for line in text.split("\n")
    ]
    cleared = "\n".join(lines)
    # A forbidden line may be broken into several.
    if _repeats(cleared, forbidden):
        return notice(counted_lines(text), "line", destination)
    return cleared


def _repeats(text: str, forbidden: frozenset[str]) -> bool:
    normal = f" {normal_line(text)} "
    return any(f" {line} " in normal for line in forbidden)


def _decoded(text: str) -> str:
    """Return the texts inside JSON, each on separate lines; any other text unchanged."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return text
    try:
        return "\n".join(_strings(orjson.loads(text)))
    except orjson.JSONDecodeError:
        return text


def _strings(content: Any) -> Iterator[str]:
    """Yield the names and values in order.

    A stack replaces recursion, since JSON may be nested more deeply than Python's calls.
    """
    stack = [content]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            stack += [entry for pair in reversed([*part.items()]) for entry in reversed(pair)]
        elif isinstance(part, list):
            stack += reversed(part)
        else:
            yield str(part)
