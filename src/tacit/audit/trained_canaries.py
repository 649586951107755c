"""Which canaries a Run was trained on: a manifest is held against the corpus before anything rests on it.

Every statistic on canaries takes the manifest's word for who was inserted and how often. So the whole corpus,
both sides of its split, must hold each inserted canary of its user as often as the manifest says, and neither
a canary that was left out nor a twin: else it is another corpus, or another manifest. What is then missing
from training is what the split held out.

A screening masks canaries and cuts them into sentences. There, less can be known: inserted canaries' users
must be there, users that exist for canaries only must not be there without one, and no canary may stand there
more often than it was planted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tacit.corpus import UserCorpus
from tacit.corpus.canaries import Canary, CanaryManifest
from tacit.errors import InputError
from tacit.evaluation.report import recipe_of
from tacit.runs import Run
from tacit.training.preparation import SplitCorpus

_Counts = Counter[tuple[str, str]]  # documents by user and text


def as_trained(run: Run, manifest: CanaryManifest, texts: SplitCorpus, notes: list[str]) -> CanaryManifest:
    """The manifest as training saw it: what was held out counts as never inserted; refused if not its own."""
    if recipe_of(run).corpus.blocks is not None:
        raise InputError(
            f"{run.folder} cut its corpus in blocks, which tears canaries apart; audit a Run whose users are "
            "people."
        )
    if not any(one.inserted for one in manifest.canaries):
        raise InputError(
            f"None of the manifest's {len(manifest.canaries)} canaries was inserted, so that nothing tells "
            f"whether it belongs to {run.folder}; plant with a greater include, or leave it out."
        )
    refuse_another(str(run.folder), manifest, texts.whole)
    if texts.whole.has_masks:
        users = frozenset(texts.train.users)
        trained = {one.id: one.repetitions for one in manifest.canaries if one.user in users}
    else:
        counts = _found(manifest, texts.train)
        trained = {one.id: counts[one.user, one.text] for one in manifest.canaries}
    kept = tuple(_with(one, trained.get(one.id, 0)) for one in manifest.canaries)
    inserted = sum(one.inserted for one in manifest.canaries)
    if not (left := sum(one.inserted for one in kept)):
        raise InputError(
            f"None of the manifest's {inserted} inserted canaries is in the text that {run.folder} was "
            "trained on, because its split holds all of them out; split by user as the manifest's plan says."
        )
    if inserted > left:
        notes.append(f"{inserted - left} inserted canaries were held out and count as not inserted.")
    if fewer := sum(
        one.inserted and one.repetitions < planted.repetitions
        for one, planted in zip(kept, manifest.canaries, strict=True)
    ):
        notes.append(f"Of {fewer} canaries some repetitions were held out and do not count.")
    return replace(manifest, canaries=kept)


def _with(canary: Canary, repetitions: int) -> Canary:
    if not canary.inserted or not repetitions:
        return replace(canary, inserted=False)
    return replace(canary, repetitions=repetitions)


def refuse_another(name: str, manifest: CanaryManifest, whole: UserCorpus) -> None:
    """Refuse a manifest that was not planted into the corpus of a Run, or of one that is to be."""
    planted = Counter(manifest.insertions())
    found = _found(manifest, whole)
    missing, more = planted - found, found - planted
    if whole.has_masks:
        users, carriers = frozenset(whole.users), {user for user, _ in planted}
        missing = _Counts({one: times for one, times in planted.items() if one[0] not in users})
        if manifest.plan.owner == "new":
            idle = {one.user for one in manifest.canaries} - carriers
            more += _Counts({(user, ""): 1 for user in idle & users})
    if missing or more:
        raise InputError(
            f"The manifest's canaries are not those in the corpus of {name}: {missing.total()} of "
            f"{planted.total()} planted documents are missing, and {more.total()} are there that it does not "
            "tell of; give the manifest that was planted into this corpus, and the corpus as it was planted."
        )


def _found(manifest: CanaryManifest, corpus: UserCorpus) -> _Counts:
    """The documents that are a canary, inserted or not, or a twin."""
    known = {text for one in manifest.canaries for text in (one.text, one.twin_text)}
    return Counter((one.user, one.text) for one in corpus.documents() if one.text in known)
