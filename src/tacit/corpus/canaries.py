"""Canaries: invented secrets planted in a corpus, so that an audit can measure what a model remembers.

What an audit may rely on:

* **Uniform.** A secret is uniform over its whole space R (all digit strings of the length, leading zeros
  included; all word sequences over the given list) and independent of everything else, except that
  canaries with one shared prefix never coincide. So, for a model that never saw it, its rank among R is
  uniform, and exposure is -log2 of an exact p-value.
* **Its own coin.** Each canary is inserted, or not, by an independent coin; members and non-members then
  differ in nothing else.
* **Its twin.** A never-inserted alternative for the same place, exchangeable with the secret (``draw_pair``).
* **Committed.** SHA-256 commitments, hidden by a 32-byte nonce (a six-digit secret without one is found by
  trying all), bind the whole draw. Publish ``CanaryManifest.commitment`` before training and show the
  manifest afterwards. ``load`` finds every change to the file but one: a forger who also recomputes the
  hashes. Only the published commitment finds that.

A seed given by the caller makes the draw repeatable and therefore guessable: the manifest says so.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from tacit.corpus.canary_secrets import SecretSpace, Stream, draw_pair
from tacit.corpus.word_list import PUBLIC_WORDS
from tacit.errors import CorpusError, InputError, Tampered
from tacit.files import write_json

SecretKind = Literal["digits", "words"]
PrefixKind = Literal["distinct", "shared"]
OwnerKind = Literal["existing", "new"]

_FORMAT = "tacit canaries 1"
_SECRET, _TAG = "{secret}", "{tag}"
# Where a template without {tag} gets one: in front, because any template has a front.
_TAG_IN_FRONT = f"{_TAG}: "
# With fewer candidates even the first rank has a chance of more than 5 %, and no exposure can be significant.
_FEWEST_CANDIDATES = 20
_GREATEST_LENGTH = 100


@dataclass(frozen=True)
class CanaryPlan:
    """What to plant. Every chosen user gets one canary per rung of ``ladder``, repeated that many times.

    ``distinct`` prefixes give each canary a public tag of its own (at ``{tag}``, else as "tag: " in front of
    the template), so that canaries do not compete for one continuation; ``shared`` is the papers' protocol.
    """

    template: str = "My ID is: {secret}"
    secret: SecretKind = "digits"  # noqa: S105 (the kind of secret, not one)
    length: int = 6
    prefix: PrefixKind = "distinct"
    users: int = 10
    owner: OwnerKind = "existing"
    ladder: tuple[int, ...] = (1,)
    include: float = 0.5
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("secret", SecretKind), ("prefix", PrefixKind), ("owner", OwnerKind)):
            if getattr(self, name) not in get_args(kind):
                choices = " or ".join(get_args(kind))
                raise InputError(f"Expected {name}={getattr(self, name)!r} to be {choices}.")
        self._check_template()
        if not _is_integer(self.users) or self.users < 1:
            raise InputError(f"Expected users={self.users!r} to be a whole number above 0, e.g. 10.")
        if not _is_integer(self.length) or not 1 <= self.length <= _GREATEST_LENGTH:
            raise InputError(
                f"Expected length={self.length!r} to be a whole number from 1 to {_GREATEST_LENGTH}, e.g. 6."
            )
        if not isinstance(self.ladder, tuple) or not self.ladder:
            raise InputError("Expected ladder to be a tuple of repetitions, at least one, e.g. (1, 2, 5).")
        if not all(_is_integer(rung) and rung >= 1 for rung in self.ladder):
            raise InputError(f"Expected every rung of ladder={self.ladder!r} to be a whole number above 0.")
        if not _is_number(self.include) or not 0 <= self.include <= 1:
            raise InputError(
                f"Expected include={self.include!r} in [0, 1]; it is the coin's chance, e.g. 0.5."
            )
        if self.seed is not None and (not _is_integer(self.seed) or self.seed < 0):
            raise InputError(f"Expected seed={self.seed!r} to be None or a whole number of at least 0.")

    def _check_template(self) -> None:
        if not isinstance(self.template, str):
            raise InputError(f"Expected template to be text, e.g. 'My ID is: {_SECRET}'.")
        if self.template.count(_SECRET) != 1:
            raise InputError(
                f"Expected template to contain {_SECRET} exactly once, found {self.template.count(_SECRET)}; "
                f"e.g. 'My ID is: {_SECRET}'."
            )
        if self.template.count(_TAG) > 1 or _TAG in self.template.partition(_SECRET)[2]:
            raise InputError(f"Expected template to contain {_TAG} at most once, and before {_SECRET}.")
        if self.prefix == "shared" and _TAG in self.template:
            raise InputError(f"A shared prefix has no tags: take {_TAG} out, or use prefix='distinct'.")


@dataclass(frozen=True)
class Canary:
    """One secret, its place (``template`` with the tag filled in) and what became of it."""

    id: str
    user: str = field(repr=False)
    template: str
    prefix: str
    secret: str = field(repr=False)
    twin: str = field(repr=False)
    inserted: bool = field(repr=False)
    repetitions: int
    commitment: str = ""

    @property
    def text(self) -> str:
        """The document that is planted if the coin says so."""
        return self.template.replace(_SECRET, self.secret)

    @property
    def twin_text(self) -> str:
        """The same document with the twin, which is never planted."""
        return self.template.replace(_SECRET, self.twin)

    def commit(self, nonce: str) -> str:
        """Hash every fact of this canary together with the nonce."""
        return _digest({"nonce": nonce, **asdict(self), "commitment": None})


@dataclass(frozen=True)
class CanaryManifest:
    """The whole draw. Private: whoever holds it knows the secrets; keep it away from the trained model."""

    plan: CanaryPlan
    seed: int = field(repr=False)
    seeded_by_caller: bool
    nonce: str = field(repr=False)
    canaries: tuple[Canary, ...] = field(repr=False)
    candidates: int  # |R|, the number of equally likely secrets
    word_list: str | None  # SHA-256 of the caller's list, which an audit needs again to enumerate R
    commitment: str = ""

    def insertions(self) -> Iterator[tuple[str, str]]:
        """Yield (user, text) for every document to plant, each as often as its canary is repeated."""
        for canary in self.canaries:
            if canary.inserted:
                for _ in range(canary.repetitions):
                    yield canary.user, canary.text

    def commit(self) -> str:
        """Hash the whole manifest, the canaries' commitments and the nonce included."""
        return _digest({**self._to_json(), "commitment": None})

    def save(self, path: Path) -> None:
        """Write the manifest as JSON that only its owner can read."""
        write_json(path, self._to_json(), private=True)

    @classmethod
    def load(cls, path: Path) -> CanaryManifest:
        """Read a manifest and check every commitment in it."""
        try:
            content = json.loads(path.read_bytes())
        except OSError as problem:
            raise InputError(f"Cannot read the canary manifest {path} ({problem.strerror}).") from None
        except json.JSONDecodeError as problem:
            raise InputError(
                f"{path}, line {problem.lineno}: not JSON; give a manifest that tacit wrote."
            ) from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text; give a manifest that tacit wrote.") from None
        try:
            manifest = cls._from_json(content)
            # A field that was added, or 1 turned into 1.0, would not show in any hash of what was parsed.
            same = _canonical(manifest._to_json()) == _canonical(content)
        except (KeyError, TypeError, ValueError, InputError):
            same = False
        if not same:
            raise Tampered(
                f"{path} has not the fields of a canary manifest; restore the file that tacit wrote."
            )
        for canary in manifest.canaries:
            if canary.commit(manifest.nonce) != canary.commitment:
                raise Tampered(f"{path}: canary {canary.id} differs from its commitment; restore the file.")
        if manifest.commit() != manifest.commitment:
            raise Tampered(f"{path} differs from its commitment; restore the file that tacit wrote.")
        return manifest

    def _to_json(self) -> dict[str, Any]:
        # The two large numbers are strings: many JSON readers round beyond 2**53.
        content = {**asdict(self), "seed": str(self.seed), "candidates": str(self.candidates)}
        content["plan"]["ladder"] = list(self.plan.ladder)
        content["canaries"] = list(content["canaries"])
        return {"format": _FORMAT, **content}

    @classmethod
    def _from_json(cls, content: Any) -> CanaryManifest:
        fields = dict(content)
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        fields["plan"] = CanaryPlan(**{**fields["plan"], "ladder": tuple(fields["plan"]["ladder"])})
        fields["canaries"] = tuple(Canary(**canary) for canary in fields["canaries"])
        return cls(**{**fields, "seed": int(fields["seed"]), "candidates": int(fields["candidates"])})


def draw_canaries(
    plan: CanaryPlan,
    users: Sequence[str],
    *,
    words: Sequence[str] | None = None,
    token_count: Callable[[str], int] | None = None,
) -> CanaryManifest:
    """Draw the plan's canaries for a corpus with these ``users`` (their order does not matter).

    ``words`` is the public list that word secrets are drawn from, in its given order; tags use it too, so
    that they lie in the model's vocabulary. ``token_count`` counts the tokens of a text as the model's
    tokenizer does; with it, a twin's document is as long as its canary's in tokens too.
    """
    space = _space(plan, words)
    seed = secrets.randbits(256) if plan.seed is None else plan.seed
    nonce = secrets.token_hex(32) if plan.seed is None else Stream(seed, "nonce").key.hex()
    places = list(product(_draw_owners(plan, users, seed), plan.ladder))
    if plan.prefix == "shared" and 4 * len(places) > space.size:
        raise InputError(
            f"{len(places)} canaries with one shared prefix need at least {4 * len(places)} candidates, and "
            f"there are {space.size}; use a greater length, fewer canaries or prefix='distinct'."
        )
    taken: set[str] = set()
    canaries = []
    templates = _templates(plan, len(places), seed, words or PUBLIC_WORDS)
    for index, ((user, repetitions), template) in enumerate(zip(places, templates, strict=True)):
        if plan.prefix == "distinct":
            taken = set()
        pair = draw_pair(space, seed, index, taken, _tokens_in(template, token_count))
        coin = Stream(seed, "coin", index).below(2**53) / 2**53
        canary = Canary(
            id=f"c{index:04d}",
            user=user,
            template=template,
            prefix=template.partition(_SECRET)[0],
            secret=pair.secret,
            twin=pair.twin,
            inserted=coin < plan.include,
            repetitions=repetitions,
        )
        canaries.append(replace(canary, commitment=canary.commit(nonce)))
    manifest = CanaryManifest(
        plan=plan,
        seed=seed,
        seeded_by_caller=plan.seed is not None,
        nonce=nonce,
        canaries=tuple(canaries),
        candidates=space.size,
        word_list=None if words is None else _digest(list(words)),
    )
    return replace(manifest, commitment=manifest.commit())


def plant(
    rows: Iterable[Mapping[str, Any]], manifest: CanaryManifest, *, user_column: str, text_column: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows as they are, then the canary documents with these two columns only.

    A canary's user id has the type that the corpus gives it (a number stays a number). The canaries stand at
    the end, repetitions together: training has to shuffle. Refuses a corpus that the canaries were not
    drawn for, so write through ``tacit.files.new_file``, which leaves nothing behind then.
    """
    if user_column == text_column:
        raise InputError(
            f"Expected two columns, and both are {user_column!r}; name the user's and the text's."
        )
    owners = {canary.user for canary in manifest.canaries}
    met: dict[str, Any] = {}
    for number, row in enumerate(rows, start=1):
        for column in (user_column, text_column):
            if column not in row:
                raise CorpusError(f"Row {number} has no column {column!r}; name the corpus's own columns.")
        if not isinstance(row[text_column], str):
            raise CorpusError(
                f"Row {number}: column {text_column!r} holds no plain text, and canaries are plain text; "
                "render chat messages to a text column first."
            )
        if str(row[user_column]) in owners:
            met.setdefault(str(row[user_column]), row[user_column])
        if met and manifest.plan.owner == "new":
            raise CorpusError(
                f"Row {number} belongs to a user named like a canary's new user; rename that user."
            )
        yield dict(row)
    if manifest.plan.owner == "existing" and len(met) < len(owners):
        raise CorpusError(
            f"{len(owners) - len(met)} of the {len(owners)} users who carry canaries are not in this corpus; "
            "plant into the corpus that the canaries were drawn for."
        )
    for user, text in manifest.insertions():
        yield {user_column: met.get(user, user), text_column: text}


def _space(plan: CanaryPlan, words: Sequence[str] | None) -> SecretSpace:
    if words is not None:
        _check_words(words)
    match plan.secret:
        case "digits":
            space = SecretSpace("0123456789", plan.length, "")
        case "words":
            if words is None:
                raise InputError("Word secrets need a public list of words; give one, e.g. the tokenizer's.")
            space = SecretSpace(words, plan.length, " ")
    if space.size < _FEWEST_CANDIDATES:
        raise InputError(
            f"Expected length={plan.length} and {len(space.symbols)} symbols to give at least "
            f"{_FEWEST_CANDIDATES} candidates, not {space.size}, to tell memory from luck; raise length."
        )
    return space


def _tokens_in(template: str, token_count: Callable[[str], int] | None) -> Callable[[str], int] | None:
    """Count the tokens of the whole document that a secret makes: its neighbours decide how it splits."""
    if token_count is None:
        return None
    return lambda secret: token_count(template.replace(_SECRET, secret))


def _draw_owners(plan: CanaryPlan, users: Sequence[str], seed: int) -> list[str]:
    """Draw existing users without replacement, or name new ones."""
    known = sorted(set(users))
    if plan.owner == "new":
        owners = [f"canary-{number:03d}" for number in range(plan.users)]
        if clashes := len(set(owners) & set(known)):
            raise InputError(
                f"{clashes} users of the corpus are named like new canary users; "
                "plant into the original corpus, or rename them."
            )
        return owners
    if plan.users > len(known):
        raise InputError(
            f"Expected users={plan.users} to be at most the corpus's {len(known)} users; "
            "choose fewer, or owner='new'."
        )
    stream = Stream(seed, "owner")
    return [known.pop(stream.below(len(known))) for _ in range(plan.users)]


def _templates(plan: CanaryPlan, count: int, seed: int, words: Sequence[str]) -> list[str]:
    """Fill in the tags, which are public, distinct and of one length in words."""
    if plan.prefix == "shared":
        return [plan.template] * count
    template = plan.template if _TAG in plan.template else _TAG_IN_FRONT + plan.template
    tag_length = 2
    while len(words) ** tag_length < 4 * count:
        tag_length += 1
    space, stream = SecretSpace(words, tag_length, " "), Stream(seed, "tag")
    tags: dict[str, None] = {}
    while len(tags) < count:
        tags[space.draw(stream)] = None
    return [template.replace(_TAG, tag) for tag in tags]


def _check_words(words: Sequence[str]) -> None:
    if len(words) < 2:
        raise InputError(
            f"Expected a list of at least 2 words, found {len(words)}; give a larger public list."
        )
    if duplicates := len(words) - len(set(words)):
        raise InputError(
            f"The word list holds {duplicates} duplicates, which would be drawn too often; list a word once."
        )
    if any(not word or any(mark.isspace() or mark in "{}" for mark in word) for word in words):
        raise InputError("The word list holds an empty word, or one with a space or brace; leave those out.")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(content: Any) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()
