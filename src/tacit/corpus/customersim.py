"""CustomerSim: simulated customer-service dialogues whose every secret is known to the character.

Each dialogue follows an agenda (greet, state the problem, verify, check, resolve, close) towards one of
ten goals about parcels, orders and accounts, and holds exactly one name, address, phone, order number and
tracking number, as often as it comes up. What holds, and the tests check:

* ``text[start:end]`` of every gold span is the whole value, and a value occurs nowhere outside its spans.
* Distinct values stay distinct as text: none occurs, as whole words, within another one of the corpus.
* ``repeat_secrets = r``: in each dialogue of a user after the first, each of the five slots takes, with
  probability r, a value that the same user gave before (uniformly among them), else a value never used in
  the corpus. Two users never share a value. The coins do not depend on r, so a larger r repeats every slot
  that a smaller one repeats.
* The same plan gives the same bytes in every process. Growing ``users`` leaves the earlier users' dialogues
  as they were, exactly. Changing ``dialogues_per_user`` or ``repeat_secrets`` leaves goals, wording and
  fresh values as they were, except where a value is already taken and must be drawn again.

Names and places come from Faker, whose word lists change between its releases, and choices from Python's
``random``: "the same bytes" presumes the same versions of Faker, Python and tacit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from faker import Faker

from tacit.corpus import dialogue_templates as templates
from tacit.corpus.limits import require_seed, require_share, require_whole
from tacit.errors import InputError
from tacit.files import new_file

LABELS: tuple[str, ...] = ("NAME", "ADDRESS", "PHONE", "ORDER", "TRACKING")

AGENT, CUSTOMER = "SYS", "USR"

# No number format may be part of another: phones alone have a run of ten digits or groups of three, three
# and four; orders and tracking numbers differ in their separators. Then two values that differ cannot occur
# in one another, and counting occurrences in the text is counting spans.
_PHONE_FORMATS = (
    "($##) $##-####", "$##-$##-####", "$##.$##.####", "$## $## ####", "+1 $## $## ####", "1-$##-$##-####",
    "$##$######",
)  # fmt: skip
_ORDER_FORMATS = ("??-######-##", "#######/####", "W-########")
_TRACKING_FORMATS = ("??#########??", "****-****-****", "#### #### #### ####")
# No suffix may be a surname ("Hunter Hill" is a person to Faker, and was a street).
_STREET_SUFFIXES = ("Street", "Avenue", "Road", "Drive", "Court", "Terrace", "Boulevard", "Way", "Parkway")
_UNITS = ("Apt. #", "Apt. ##", "Suite ###", "Unit #", "Floor #")
# Without I, O and Q: nobody can tell them from digits over the phone.
_LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"
_SLOT = re.compile(r"\{(\w+)\}")
_MOST_REDRAWS = 200
_MOST_DIALOGUES = 100_000_000


@dataclass(frozen=True)
class SimulationPlan:
    """How much to simulate, and how often a user's secrets return."""

    users: int = 100
    dialogues_per_user: int = 5
    repeat_secrets: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("users", "dialogues_per_user"):
            require_whole(name, getattr(self, name), most=_MOST_DIALOGUES, example=5)
        if self.users * self.dialogues_per_user > _MOST_DIALOGUES:
            raise InputError(
                f"Expected users={self.users} x dialogues_per_user={self.dialogues_per_user} to be at most "
                f"{_MOST_DIALOGUES:,} dialogues; simulate fewer."
            )
        repeats = "the chance that a user gives an earlier secret again"
        require_share("repeat_secrets", self.repeat_secrets, repeats, example=0.2)
        require_seed("seed", self.seed)


@dataclass(frozen=True)
class Span:
    """One occurrence of a secret: ``text[start:end]``, counted in characters."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Dialogue:
    """One dialogue of one user with its gold spans, in order of their start."""

    user: str
    id: str
    text: str
    spans: tuple[Span, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the row of the JSONL file: id, user, text, spans."""
        spans = [{"start": span.start, "end": span.end, "label": span.label} for span in self.spans]
        return {"id": self.id, "user": self.user, "text": self.text, "spans": spans}


def simulate(plan: SimulationPlan) -> Iterator[Dialogue]:
    """Yield the plan's dialogues, user by user.

    Memory is constant apart from one 64-bit fingerprint (some 80 bytes in a Python set) for each value used,
    and the values of the current user.
    """
    values = _Values(plan.seed)
    for user_number in range(plan.users):
        user = f"user-{user_number:06d}"
        earlier: dict[str, list[str]] = {label: [] for label in LABELS}
        for dialogue_number in range(plan.dialogues_per_user):
            place = f"{user_number}/{dialogue_number}"
            secrets: dict[str, str] = {}
            for label in LABELS:
                chance = _stream(plan.seed, place, label, "repeat")
                if earlier[label] and chance.random() < plan.repeat_secrets:
                    secrets[label] = chance.choice(earlier[label])
                else:
                    secrets[label] = values.fresh(label, place)
                    earlier[label].append(secrets[label])
            script = _Script(secrets, _stream(plan.seed, place, "script"))
            _perform(script)
            yield Dialogue(user, f"{user}-{dialogue_number:03d}", *script.written())


def write_customersim(
    plan: SimulationPlan, path: Path, progress: Callable[[int], None] | None = None
) -> None:
    """Write the dialogues as JSON lines; ``progress`` is told how many are written so far."""
    with new_file(path) as handle:
        for count, dialogue in enumerate(simulate(plan), start=1):
            handle.write(json.dumps(dialogue.to_json(), ensure_ascii=False).encode() + b"\n")
            if progress is not None:
                progress(count)


def _stream(seed: int, *purpose: str) -> Random:
    """Return a random stream of its own for each purpose: what one draws never moves another."""
    return Random(_fingerprint("/".join(("customersim", str(seed), *purpose)), size=32))


def _fingerprint(text: str, *, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big")


class _Values:
    """Draws secrets that nobody in the corpus has had before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._fake = Faker("en_US")
        self._used: set[int] = set()

    def fresh(self, label: str, place: str) -> str:
        rng = _stream(self._seed, place, label, "value")
        self._fake.seed_instance(rng.getrandbits(64))
        for redraw in range(_MOST_REDRAWS):
            value = self._draw(label, rng, redraw)
            # A phone number is the same number in any format.
            known_as = re.sub(r"\D", "", value)[-10:] if label == "PHONE" else value
            key = _fingerprint(f"{label}/{known_as}", size=8)
            if key not in self._used:  # two values with one fingerprint only cost a redraw
                self._used.add(key)
                return value
        raise InputError(
            f"No unused {label.lower()} was found in {_MOST_REDRAWS} draws; "
            "simulate fewer users or dialogues, or raise repeat_secrets."
        )

    def _draw(self, label: str, rng: Random, redraw: int) -> str:
        match label:
            case "NAME":
                return self._name(rng, redraw)
            case "ADDRESS":
                return self._address(rng)
            case "PHONE":
                return self._fake.numerify(rng.choice(_PHONE_FORMATS))
            case "ORDER":
                return _code(rng, _ORDER_FORMATS)
            case _:
                return _code(rng, _TRACKING_FORMATS)

    def _name(self, rng: Random, redraw: int) -> str:
        first, last = self._fake.first_name(), self._fake.last_name()
        # Common names run out in a large corpus: what is taken gets an initial, then two. A middle name would
        # not do: "Anna Kyle Davis" contains the name of Kyle Davis.
        if redraw >= 20:
            return f"{first} {rng.choice(_LETTERS)}. {rng.choice(_LETTERS)}. {last}"
        if redraw >= 4 or rng.random() < 0.08:
            return f"{first} {rng.choice(_LETTERS)}. {last}"
        return f"{first} {last}"

    def _address(self, rng: Random) -> str:
        fake = self._fake
        number = fake.numerify("%###"[: rng.choice((2, 3, 3, 4, 4))])
        street = f"{number} {fake.last_name()} {rng.choice(_STREET_SUFFIXES)}"
        if rng.random() < 0.35:
            street = f"{street}, {fake.numerify(rng.choice(_UNITS).replace('#', '%', 1))}"
        state = fake.state_abbr(include_territories=False, include_freely_associated_states=False)
        return f"{street}, {fake.city()}, {state} {fake.postcode_in_state(state)}"


def _code(rng: Random, formats: tuple[str, ...]) -> str:
    """Fill a format: # is a digit, ? a letter, * either."""
    alphabets = {"#": "0123456789", "?": _LETTERS, "*": _LETTERS + "0123456789"}
    return "".join(rng.choice(alphabets[mark]) if mark in alphabets else mark for mark in rng.choice(formats))


class _Script:
    """A dialogue being written: fills slots, remembers where every secret went."""

    def __init__(self, secrets: Mapping[str, str], rng: Random) -> None:
        self.rng = rng
        self.said: set[str] = set()
        self._secrets = secrets
        self._public = {"item": rng.choice(templates.ITEMS), "day": rng.choice(templates.DAYS)}
        self._speaker = ""
        self._pieces: list[str] = []
        self._length = 0
        self._spans: list[Span] = []

    def happens(self, probability: float) -> bool:
        return self.rng.random() < probability

    def say(self, speaker: str, template: str) -> None:
        """Add a sentence to the speaker's turn, or begin a turn when the other one spoke last."""
        if speaker == self._speaker:
            self._write(" ")
        else:
            self._write(f"{speaker}: " if not self._pieces else f"\n{speaker}: ")
            self._speaker = speaker
        # With one group, split() alternates: text, slot, text, slot, ..., text.
        for position, piece in enumerate(_SLOT.split(template)):
            if position % 2 == 0:
                self._write(piece)
            elif piece in self._secrets:
                start = self._length
                self._write(self._secrets[piece])
                self._spans.append(Span(start, self._length, piece))
                self.said.add(piece)
            else:
                self._write(self._public[piece])

    def say_one_of(self, speaker: str, phrasings: templates.Phrasings) -> None:
        self.say(speaker, self.rng.choice(phrasings))

    def written(self) -> tuple[str, tuple[Span, ...]]:
        return "".join(self._pieces), tuple(self._spans)

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)


def _perform(script: _Script) -> None:
    """Play the agenda of one dialogue into the script."""
    goal = script.rng.choice(templates.GOALS)
    script.say_one_of(AGENT, templates.GREETINGS)
    if script.happens(0.3):
        script.say_one_of(CUSTOMER, templates.PLEASANTRIES)
    script.say_one_of(CUSTOMER, goal.openings)
    script.say_one_of(AGENT, templates.SYMPATHY)
    _verify(script, goal)
    for check in script.rng.sample(goal.checks, script.rng.choice((0, 0, 1, 1, 2))):
        script.say(AGENT, check.ask)
        script.say_one_of(CUSTOMER, check.answers)
    if script.happens(0.2):
        _exchange(script, AGENT, templates.WAITING)
    script.say_one_of(AGENT, goal.resolutions)
    if script.happens(0.15):
        _exchange(script, CUSTOMER, templates.REPEAT_TRACKING)
    script.say_one_of(CUSTOMER, templates.REACTIONS)
    if script.happens(0.2):
        script.say_one_of(AGENT, templates.SUMMARIES)
    script.say_one_of(AGENT, templates.ANYTHING_ELSE)
    _exchange(script, CUSTOMER, templates.FAREWELLS)


def _verify(script: _Script, goal: templates.Goal) -> None:
    """Go through name, phone, address and order; skip what was said, repair what was not understood."""
    rest = ["PHONE", "ADDRESS", "ORDER"]
    script.rng.shuffle(rest)
    pending = ["NAME", *rest]
    while pending:
        label = pending.pop(0)
        if label in script.said:
            continue
        phrases = goal.verify.get(label, templates.VERIFY[label])
        script.say_one_of(AGENT, phrases.ask)
        script.say_one_of(CUSTOMER, phrases.tell)
        if script.happens(0.06):
            script.say_one_of(AGENT, templates.UNCLEAR)
            script.say_one_of(CUSTOMER, phrases.tell)
        if pending and pending[0] not in script.said and script.happens(0.35):
            following = goal.verify.get(pending[0], templates.VERIFY[pending[0]])
            script.say_one_of(CUSTOMER, following.volunteer)
        if script.happens(0.12):
            script.say_one_of(AGENT, phrases.read_back)
            script.say_one_of(CUSTOMER, templates.RIGHT)
        if script.happens(0.5):
            script.say_one_of(AGENT, templates.NEXT_QUESTION)


def _exchange(script: _Script, opener: str, pairs: templates.Pairs) -> None:
    first, second = script.rng.choice(pairs)
    script.say(opener, first)
    script.say(CUSTOMER if opener == AGENT else AGENT, second)
