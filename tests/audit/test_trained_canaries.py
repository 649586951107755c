"""A manifest is held against the whole corpus: other canaries, or another number of them, are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tacit.audit.auditing import audit_run
from tacit.audit.plans import AuditPlan
from tacit.audit.trained_canaries import as_trained
from tacit.corpus import UserCorpus
from tacit.corpus.canaries import CanaryManifest, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.corpus.splitting import is_held_out
from tacit.errors import InputError
from tacit.recipes import HeldOutSection
from tacit.runs import Run
from tacit.training.preparation import split
from tests.audit.runs import Audited

Documents = list[tuple[str, str]]
SAID: Documents = [(f"user-{number % 20}", f"Saying number {number}.") for number in range(60)]


def drawn(said: Documents = SAID, **changes: object) -> CanaryManifest:
    options = {"template": "My code is: {secret}", "length": 4, "users": 8, "ladder": (1, 4), "seed": 3}
    users = [user for user, _ in said]
    plan = CanaryPlan(**{**options, **changes})  # type: ignore[arg-type]
    return draw_canaries(plan, users, documents=len(said), characters=1)


def trained(
    run: Run,
    manifest: CanaryManifest,
    documents: Documents,
    held_out: HeldOutSection | None = None,
    *,
    screened: bool = False,
) -> tuple[CanaryManifest, list[str]]:
    notes: list[str] = []
    corpus = UserCorpus.from_pairs(documents, screened=screened)
    return as_trained(run, manifest, split(corpus, held_out or HeldOutSection()), notes), notes


def planted(manifest: CanaryManifest) -> Documents:
    return [*SAID, *manifest.insertions()]


def test_what_was_planted_is_taken_as_it_is(untouched: Audited) -> None:
    manifest = drawn()
    assert 0 < sum(one.inserted for one in manifest.canaries) < len(manifest.canaries)
    assert trained(untouched.run, manifest, planted(manifest)) == (manifest, [])


def first(manifest: CanaryManifest, *, inserted: bool) -> tuple[str, str]:
    one = next(canary for canary in manifest.canaries if canary.inserted is inserted)
    return one.user, one.text


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: SAID,
        lambda manifest: planted(drawn(seed=4)),
        # With the same seed: the same secrets by the same coins, in part for other users.
        lambda manifest: planted(drawn([(f"person-{user}", text) for user, text in SAID])),
        lambda manifest: planted(drawn(ladder=(1, 2))),
        lambda manifest: planted(manifest)[:-1],
        lambda manifest: [*planted(manifest), first(manifest, inserted=True)],
        lambda manifest: [*planted(manifest), first(manifest, inserted=False)],
        lambda manifest: [*planted(manifest), ("user-1", manifest.canaries[0].twin_text)],
        lambda manifest: [one for one in planted(manifest) if one != first(manifest, inserted=True)],
    ],
    ids=["none", "seed", "corpus", "ladder", "fewer", "more", "left out", "twin", "one gone"],
)
def test_a_manifest_of_another_corpus_is_refused(
    untouched: Audited, change: Callable[[CanaryManifest], Documents]
) -> None:
    manifest = drawn()
    with pytest.raises(InputError, match="give the manifest that was planted into this corpus"):
        trained(untouched.run, manifest, change(manifest))


def test_only_what_the_split_holds_out_may_be_missing_from_training(untouched: Audited) -> None:
    manifest = drawn()
    other = HeldOutSection(share=0.5, seed=1)  # not the split that the plan had in view
    found, notes = trained(untouched.run, manifest, planted(manifest), other)
    lost = [
        before.user
        for before, after in zip(manifest.canaries, found.canaries, strict=True)
        if before.inserted and not after.inserted
    ]
    assert lost
    assert notes == [f"{len(lost)} inserted canaries were held out and count as not inserted."]
    gone = [one for one in manifest.insertions() if one[0] != lost[0]]
    with pytest.raises(InputError, match="are missing"):
        trained(untouched.run, manifest, [*SAID, *gone], other)


def test_repetitions_are_those_that_were_trained_on(untouched: Audited) -> None:
    manifest = drawn(owner="new", ladder=(6,))
    within = HeldOutSection(share=0.5, by="within")
    found, notes = trained(untouched.run, manifest, planted(manifest), within)
    assert {one.repetitions for one in found.canaries if one.inserted} == {3}
    assert len(notes) == 1
    behind = within.model_copy(update={"among": len(SAID)})
    assert trained(untouched.run, manifest, planted(manifest), behind) == (manifest, [])


def test_without_an_inserted_canary_nothing_can_be_checked(untouched: Audited) -> None:
    with pytest.raises(InputError, match="greater include"):
        trained(untouched.run, drawn(include=0.0), SAID)
    manifest = drawn(owner="new")
    carriers = {user for user, _ in manifest.insertions()}
    seed = next(
        seed
        for seed in range(10_000)
        if all(not split_keeps(user, seed) for user in carriers)
        and any(split_keeps(user, seed) for user, _ in SAID)
    )
    with pytest.raises(InputError, match="holds all of them out"):
        trained(untouched.run, manifest, planted(manifest), HeldOutSection(share=0.8, seed=seed))


def split_keeps(user: str, seed: int) -> bool:
    return not is_held_out(user, 0.8, seed=seed)


def test_of_a_screened_corpus_users_are_known_and_what_was_left_as_it_is(untouched: Audited) -> None:
    manifest = drawn(owner="new", include=0.5, ladder=(4,))
    assert {one.inserted for one in manifest.canaries} == {True, False}
    masked = [(user, text[: text.index(":")] + ": <MASK>") for user, text in manifest.insertions()]
    run = untouched.run
    assert trained(run, manifest, [*SAID, *masked], screened=True) == (manifest, [])
    gone = [one for one in masked if one[0] != masked[0][0]]
    left_out = first(manifest, inserted=False)
    wrong: list[Documents] = [
        [*SAID, *gone],
        [*SAID, *masked, left_out],
        [*SAID, *masked, (left_out[0], "Good <MASK>")],
    ]
    for documents in wrong:
        with pytest.raises(InputError, match="planted into this corpus"):
            trained(run, manifest, documents, screened=True)


def test_an_audit_refuses_it_too(untouched: Audited) -> None:
    canaries = untouched.manifest.canaries
    place = next(place for place, one in enumerate(canaries) if not one.inserted)
    told = replace(canaries[place], inserted=True, first_document=0)
    forged = replace(untouched.manifest, canaries=(*canaries[:place], told, *canaries[place + 1 :]))
    with pytest.raises(InputError, match="are missing"):
        audit_run(untouched.run, AuditPlan(manifest=forged, documents=0, lines=0), device="cpu")
