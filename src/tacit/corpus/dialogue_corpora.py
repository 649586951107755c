"""Published dialogue corpora as documents with users and spans: MultiWOZ and Schema-Guided Dialogue.

A dialogue becomes one document of one user (these corpora name no people), a turn one line, "USER: ..." or
"SYSTEM: ...", and the annotated values of the chosen slots its secrets. Read are, from a file or a folder of
them:

* MultiWOZ 2.1, ``data.json``: dialogues by id, turns in ``log``, ``span_info`` counted in tokens (ConvLab's
  copy).
* MultiWOZ 2.1 as JSON lines: ``dialogue_id``, ``turns`` with ``speaker``, ``text``, ``spans`` counted in
  characters.
* MultiWOZ 2.2, ``dialogues_*.json``: spans in ``frames``, and in ``dialog_acts.json`` beside or above them.
* Schema-Guided Dialogue, ``dialogues_*.json``: spans in ``frames``.

A span that does not lie in its turn is left out and counted; one whose text differs from its value (a
synonym: "nine" for 9) is kept and counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tacit.corpus.customersim import Span
from tacit.errors import CorpusError
from tacit.files import new_file

DialogueLayout = Literal["multiwoz", "sgd"]

MULTIWOZ_SECRETS = ("Ref", "Phone", "Post", "Addr", "Id")
"""The slots that CRT takes for secrets: reference numbers, phones, postcodes, addresses, train numbers."""
SGD_SECRETS = (
    "phone_number",
    "street_address",
    "address",
    "contact_name",
    "receiver",
    "recipient_account_name",
)

_MULTIWOZ_SLOTS = {
    "ref": "Ref",
    "phone": "Phone",
    "post": "Post",
    "postcode": "Post",
    "addr": "Addr",
    "address": "Addr",
    "id": "Id",
    "trainid": "Id",
}
_TOKEN = re.compile(r"\S+")
_LINE_END = re.compile(r"[\r\n\u2028\u2029]")


class _Annotation(NamedTuple):
    """A slot's value in one turn; ``start`` and ``end`` are characters of the turn's text."""

    slot: str
    start: int
    end: int
    value: str


class _Turn(NamedTuple):
    speaker: str
    text: str
    annotations: list[_Annotation]


class _RawDialogue(NamedTuple):
    id: str
    turns: list[_Turn]


@dataclass
class ConversionCounts:
    """What was found; ``outside`` spans were left out, ``synonyms`` spell their value otherwise."""

    dialogues: int = 0
    turns: int = 0
    secrets: Counter[str] = field(default_factory=Counter)
    outside: int = 0
    synonyms: int = 0


@dataclass(frozen=True)
class ConvertedDialogue:
    """One dialogue as a document."""

    user: str
    text: str
    spans: tuple[Span, ...]

    def to_line(self) -> bytes:
        """The row of the JSONL file: user, text, spans."""
        spans = [{"start": span.start, "end": span.end, "label": span.label} for span in self.spans]
        row = {"user": self.user, "text": self.text, "spans": spans}
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def write_dialogues(
    layout: DialogueLayout, source: Path, out: Path, *, secrets: Collection[str] | None = None
) -> ConversionCounts:
    """Write a published corpus as JSON lines with ``user``, ``text`` and ``spans``."""
    counts = ConversionCounts()
    with new_file(out) as handle:
        for dialogue in convert_dialogues(layout, source, counts, secrets=secrets):
            handle.write(dialogue.to_line())
    return counts


def convert_dialogues(
    layout: DialogueLayout, source: Path, counts: ConversionCounts, *, secrets: Collection[str] | None = None
) -> Iterator[ConvertedDialogue]:
    """Read a published corpus; ``secrets`` names the slots whose values are secrets."""
    wanted = frozenset(secrets or (MULTIWOZ_SECRETS if layout == "multiwoz" else SGD_SECRETS))
    slot_name = _multiwoz_slot if layout == "multiwoz" else str
    for dialogue in _dialogues(layout, source):
        counts.dialogues += 1
        counts.turns += len(dialogue.turns)
        yield _document(dialogue, wanted, slot_name, counts)
    if not counts.dialogues:
        raise CorpusError(f"{source}: holds no dialogue; give the folder or file of a {layout} corpus.")


def _document(
    dialogue: _RawDialogue, wanted: Collection[str], slot_name: Callable[[str], str], counts: ConversionCounts
) -> ConvertedDialogue:
    lines: list[str] = []
    spans: set[tuple[int, int, str]] = set()
    position = 0
    for turn in dialogue.turns:
        # A turn is one line; each character that ends a line becomes a blank, so that positions stay.
        text = _LINE_END.sub(" ", turn.text)
        line = f"{turn.speaker}: {text}"
        begin = position + len(line) - len(text)
        for slot, start, end, value in turn.annotations:
            label = slot_name(slot)
            if label not in wanted:
                continue
            if not 0 <= start < end <= len(text) or text[start:end].isspace():
                counts.outside += 1
                continue
            counts.synonyms += _squeezed(text[start:end]) != _squeezed(value)
            spans.add((begin + start, begin + end, label))
        lines.append(line)
        position += len(line) + 1
    counts.secrets.update(label for _, _, label in spans)
    ordered = tuple(Span(*span) for span in sorted(spans))
    return ConvertedDialogue(dialogue.id, "\n".join(lines), ordered)


def _multiwoz_slot(name: str) -> str:
    """Act slots (Ref) and state slots (hotel-postcode) under one name."""
    last = name.rpartition("-")[2]
    return _MULTIWOZ_SLOTS.get(last.lower(), last)


def _squeezed(text: str) -> str:
    return re.sub(r"\W", "", text).lower()


def _dialogues(layout: DialogueLayout, source: Path) -> Iterator[_RawDialogue]:
    for path in _files(source):
        try:
            if path.suffix == ".jsonl":
                yield from _of_lines(path)
                continue
            content = _json(path)
            if isinstance(content, dict) and layout == "multiwoz":
                yield from _of_log(content)
            elif isinstance(content, list):
                yield from _of_frames(content, _acts_beside(path) if layout == "multiwoz" else {})
            else:
                raise TypeError
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise CorpusError(
                f"{path}: is not laid out as a {layout} corpus; give its original files."
            ) from None


def _files(source: Path) -> list[Path]:
    if not source.exists():
        raise CorpusError(f"{source}: does not exist; give the folder or file of a dialogue corpus.")
    if source.is_file():
        return [source]
    files = sorted(path for path in source.rglob("dialogues_*.json"))
    if not files:
        raise CorpusError(
            f"{source}: holds no dialogues_*.json; give the folder or file of a dialogue corpus."
        )
    return files


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CorpusError(f"{path}: cannot be read ({problem.strerror}); check its permissions.") from None
    except (ValueError, RecursionError):
        raise CorpusError(f"{path}: is not JSON; give the corpus' original files.") from None


def _of_lines(path: Path) -> Iterator[_RawDialogue]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            dialogue = json.loads(line)
            turns = [
                _Turn(
                    str(turn["speaker"]),
                    turn["text"],
                    [
                        _Annotation(span["slot"], int(span["start"]), int(span["end"]), str(span["value"]))
                        for span in turn["spans"]
                    ],
                )
                for turn in dialogue["turns"]
            ]
            yield _RawDialogue(str(dialogue["dialogue_id"]), turns)


def _of_log(content: Mapping[str, Any]) -> Iterator[_RawDialogue]:
    for name, dialogue in content.items():
        turns = []
        for number, turn in enumerate(dialogue["log"]):
            places = [(token.start(), token.end()) for token in _TOKEN.finditer(turn["text"])]
            annotations = []
            for _, slot, value, first, last in turn.get("span_info", ()):
                inside = 0 <= int(first) <= int(last) < len(places)
                start, end = (places[int(first)][0], places[int(last)][1]) if inside else (-1, -1)
                annotations.append(_Annotation(str(slot), start, end, str(value)))
            turns.append(_Turn("SYSTEM" if number % 2 else "USER", turn["text"], annotations))
        yield _RawDialogue(name.removesuffix(".json"), turns)


def _of_frames(content: Iterable[Any], acts: Mapping[str, Any]) -> Iterator[_RawDialogue]:
    for dialogue in content:
        name = str(dialogue["dialogue_id"])
        turns = []
        for number, turn in enumerate(dialogue["turns"]):
            annotations = [
                _Annotation(
                    str(slot["slot"]),
                    int(slot["start"]),
                    int(slot["exclusive_end"]),
                    str(
                        slot.get("value", turn["utterance"][int(slot["start"]) : int(slot["exclusive_end"])])
                    ),
                )
                for frame in turn["frames"]
                for slot in frame.get("slots", ())
                if "start" in slot  # else it is copied from another slot and not said here
            ]
            act = acts.get(name, {}).get(str(turn.get("turn_id", number)), {})
            annotations += [
                _Annotation(str(slot), int(start), int(end), str(value))
                for _, slot, value, start, end in act.get("span_info", ())
            ]
            turns.append(_Turn(str(turn["speaker"]), turn["utterance"], annotations))
        yield _RawDialogue(name.removesuffix(".json"), turns)


def _acts_beside(path: Path) -> Mapping[str, Any]:
    for folder in (path.parent, path.parent.parent):
        acts = folder / "dialog_acts.json"
        if acts.is_file():
            content = _json(acts)
            if not isinstance(content, dict):
                raise TypeError
            return content
    return {}
