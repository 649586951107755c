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
* **In training.** Inserted canaries belong only to users whom a split by user with the plan's
  ``held_out_share`` (or a smaller one) and ``held_out_seed`` keeps in training; other splits may hold
  canaries out. Each carries its user and its place, to be checked against ``held_out_documents``.

**For who attacks.** A model is shown ``Canary.prefix`` and scored on ``Canary.continuation(candidate)`` for
every candidate. The space before a secret is in the continuation, because byte-level tokenizers make it part
of the next token, and a prompt that ends in a space ends in a token that no training text has there. Check
all the same that the prefix's tokens begin those of prefix + continuation.

A seed given by the caller makes the draw repeatable and therefore guessable: the manifest says so.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice, product, repeat
from pathlib import Path
from typing import Any

from tacit.corpus.canary_plan import SECRET, TAG, CanaryPlan
from tacit.corpus.canary_secrets import SecretSpace, Stream, draw_pair
from tacit.corpus.rows import is_utf8
from tacit.corpus.splitting import is_held_out
from tacit.corpus.word_list import PUBLIC_WORDS
from tacit.errors import InputError, Tampered
from tacit.files import write_json

_FORMAT = "tacit canaries 2"
# Where a template without {tag} gets one: in front, because any template has a front.
_TAG_IN_FRONT = f"{TAG}: "
# With fewer candidates even the first rank has a chance of more than 5 %, and no exposure can be significant.
_FEWEST_CANDIDATES = 20


@dataclass(frozen=True)
class Canary:
    """One secret, its place (``template`` with the tag filled in) and what became of it.

    Its document is ``prefix + separator + secret`` and the rest of the template; ``separator`` is the space
    between the two, if any. An inserted canary is at ``documents`` of the planted corpus, counted from 0.
    """

    id: str
    user: str = field(repr=False)
    template: str
    prefix: str
    separator: str
    secret: str = field(repr=False)
    twin: str = field(repr=False)
    inserted: bool = field(repr=False)
    repetitions: int
    first_document: int | None = field(repr=False)
    commitment: str = ""

    @property
    def documents(self) -> range:
        """Where the canary stands in the planted corpus; nowhere if it was not inserted."""
        if self.first_document is None:
            return range(0)
        return range(self.first_document, self.first_document + self.repetitions)

    @property
    def text(self) -> str:
        """The document that is planted if the coin says so."""
        return self.template.replace(SECRET, self.secret)

    @property
    def twin_text(self) -> str:
        """The same document with the twin, which is never planted."""
        return self.template.replace(SECRET, self.twin)

    def continuation(self, candidate: str) -> str:
        """What follows ``prefix`` if ``candidate`` is the secret."""
        return self.separator + candidate

    def commit(self, nonce: str) -> str:
        """Hash every fact of this canary together with the nonce."""
        return _digest({"nonce": nonce, **asdict(self), "commitment": None})


@dataclass(frozen=True)
class PlantingCost:
    """How much canaries add to a corpus: the least that they can cost its usefulness.

    ``documents`` and ``characters`` are planted, the shares are theirs of the planted corpus.
    """

    corpus_documents: int
    corpus_characters: int
    documents: int
    characters: int
    share_of_documents: float
    share_of_characters: float


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
    cost: PlantingCost = field(repr=False)
    commitment: str = ""

    def insertions(self) -> Iterator[tuple[str, str]]:
        """Yield (user, text) for every document to plant, each as often as its canary is repeated."""
        for canary in self.canaries:
            if canary.inserted:
                yield from repeat((canary.user, canary.text), canary.repetitions)

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
        except RecursionError:
            raise InputError(f"{path} is nested too deeply; give a manifest that tacit wrote.") from None
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text; give a manifest that tacit wrote.") from None
        try:
            manifest = cls._from_json(content)
            # A field that was added, or 1 turned into 1.0, would not show in any hash of what was parsed.
            same = _canonical(manifest._to_json()) == _canonical(content)
        except (KeyError, TypeError, ValueError, OverflowError, InputError):
            same = False
        if not same:
            raise Tampered(
                f"{path} has not the fields of this version's canary manifest; restore the file that tacit "
                "wrote, or plant again."
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
        fields["cost"] = PlantingCost(**fields["cost"])
        return cls(**{**fields, "seed": int(fields["seed"]), "candidates": int(fields["candidates"])})


def draw_canaries(
    plan: CanaryPlan,
    users: Sequence[str],
    *,
    documents: int,
    characters: int,
    words: Sequence[str] | None = None,
    token_count: Callable[[str], int] | None = None,
) -> CanaryManifest:
    """Draw the plan's canaries for a corpus with these ``users`` (their order does not matter).

    ``documents`` and ``characters`` say how large the corpus is without them.

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
    canaries: list[Canary] = []
    next_document = documents  # ``plant`` puts canaries after the corpus
    templates = _templates(plan, len(places), seed, words or PUBLIC_WORDS)
    for index, ((user, repetitions), template) in enumerate(zip(places, templates, strict=True)):
        if plan.prefix == "distinct":
            taken = set()
        pair = draw_pair(space, seed, index, taken, _tokens_in(template, token_count))
        inserted = Stream(seed, "coin", index).below(2**53) / 2**53 < plan.include
        before_secret = template.partition(SECRET)[0]
        # Spaces only: a line break is a token of its own, or one with what stands before it.
        stripped = before_secret.rstrip(" ")
        canary = Canary(
            id=f"c{index:04d}",
            user=user,
            template=template,
            prefix=stripped,
            separator=before_secret.removeprefix(stripped),
            secret=pair.secret,
            twin=pair.twin,
            inserted=inserted,
            repetitions=repetitions,
            first_document=next_document if inserted else None,
        )
        next_document += len(canary.documents)
        canaries.append(replace(canary, commitment=canary.commit(nonce)))
    manifest = CanaryManifest(
        plan=plan,
        seed=seed,
        seeded_by_caller=plan.seed is not None,
        nonce=nonce,
        canaries=tuple(canaries),
        candidates=space.size,
        word_list=None if words is None else word_list_digest(words),
        cost=_cost(canaries, documents, characters),
    )
    return replace(manifest, commitment=manifest.commit())


def begins_with(text: str, secret: str) -> bool:
    """Whether a text begins with a secret; a word must end where the secret's does.

    So a text begins with one candidate at most.
    """
    following = text[len(secret) : len(secret) + 1]
    return text.startswith(secret) and not (secret[-1:].isalpha() and following.isalpha())


def word_list_digest(words: Sequence[str]) -> str:
    """What a manifest keeps of a word list: enough to know it again."""
    return _digest(list(words))


def _cost(canaries: Sequence[Canary], documents: int, characters: int) -> PlantingCost:
    planted = sum(len(canary.documents) for canary in canaries)
    written = sum(len(canary.text) * len(canary.documents) for canary in canaries)
    return PlantingCost(
        corpus_documents=documents,
        corpus_characters=characters,
        documents=planted,
        characters=written,
        share_of_documents=planted / max(documents + planted, 1),
        share_of_characters=written / max(characters + written, 1),
    )


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
    return lambda secret: token_count(template.replace(SECRET, secret))


def _draw_owners(plan: CanaryPlan, users: Sequence[str], seed: int) -> list[str]:
    """Draw existing users without replacement, or name new ones; none whom training will hold out."""

    def stays(user: str) -> bool:
        return not is_held_out(user, plan.held_out_share, seed=plan.held_out_seed)

    known = sorted(set(users))
    if plan.owner == "new":
        owners = list(islice(filter(stays, map("canary-{:03d}".format, count())), plan.users))
        if clashes := len(set(owners) & set(known)):
            raise InputError(
                f"{clashes} users of the corpus are named like new canary users; "
                "plant into the original corpus, or rename them."
            )
        return owners
    staying = [user for user in known if stays(user)]
    if plan.users > len(staying):
        raise InputError(
            f"Expected users={plan.users} to be at most {len(staying)}, those of the corpus's {len(known)} "
            "users who stay in training; choose fewer, or owner='new'."
        )
    stream = Stream(seed, "owner")
    return [staying.pop(stream.below(len(staying))) for _ in range(plan.users)]


def _templates(plan: CanaryPlan, number: int, seed: int, words: Sequence[str]) -> list[str]:
    """Fill in the tags, which are public, distinct and of one length in words."""
    if plan.prefix == "shared":
        return [plan.template] * number
    template = plan.template if TAG in plan.template else _TAG_IN_FRONT + plan.template
    tag_length = 2
    while len(words) ** tag_length < 4 * number:
        tag_length += 1
    space, stream = SecretSpace(words, tag_length, " "), Stream(seed, "tag")
    tags: dict[str, None] = {}
    while len(tags) < number:
        tags[space.draw(stream)] = None
    return [template.replace(TAG, tag) for tag in tags]


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
    if not all(map(is_utf8, words)):
        raise InputError("The word list holds half of a surrogate pair, which UTF-8 cannot; leave it out.")


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(content: Any) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()
