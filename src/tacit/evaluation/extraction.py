"""The extraction experiment from end to end: codes, an ensemble that memorised them, and every mechanism.

Rows come with controls: what the attack gets out of one member alone, and of a model fine-tuned on all codes.
Where that is nothing, no other row shows anything, and each says inconclusive. The plain mean of the ensemble
is no such control: members that memorised different codes disagree at every digit, so that their mean spells
one of m codes with probability of only about m^(1-l), without any mechanism.

The working folder is the owner's: ``codes.jsonl`` holds the secrets, ``ensemble`` and ``finetuned`` are Runs
that memorised them, ``rows.json`` has what was measured. An interrupted experiment goes on from there.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch

from tacit.attacks import (
    Codes,
    CodeTree,
    ExtractionReport,
    ExtractionRow,
    MemorisingPlan,
    Place,
    Places,
    RememberingChoice,
    analytic_hit_rate,
    judged,
    pmf_of,
    sample_hits,
)
from tacit.attacks.extraction_rows import CONTROLS
from tacit.corpus import read_corpus
from tacit.errors import InputError
from tacit.files import PRIVATE_FOLDER_MODE, make_parent, read_json, write_json
from tacit.mechanisms import Certified, Individual, NonPrivate, Public
from tacit.mechanisms.choice import Mechanism
from tacit.models.ensemble import Ensemble, load_ensemble
from tacit.models.loading import PublicModel, best_device, load_public_model
from tacit.models.trained import load_public_of
from tacit.prediction import Answering, Budget
from tacit.privacy import Guarantee
from tacit.progress import Progress, Silent
from tacit.recipes import CorpusSection, Recipe
from tacit.runs import Run, partial_folder
from tacit.statistics import clopper_pearson
from tacit.training import finetune, train_ensemble

Attacked = Literal[
    "submix",
    "submix_averaged",
    "submix_paper",
    "certified",
    "individual",
    "subsample_aggregate",
    "gnmax",
]

_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "submix_averaged": {"name": "submix", "mixing": "averaged"},
    "submix_paper": {"name": "submix", "mixing": "averaged", "weights": "paper"},
}
_ROWS: Final = "rows.json"


@dataclass(frozen=True)
class AttackPlan:
    """How the models are attacked: how often, and behind which mechanisms and budgets.

    ``queries`` is how many answers a budget is meant for; by default all tokens of all generations.
    """

    generations: int = 100
    mechanisms: tuple[Attacked, ...] = ("submix", "certified", "individual")
    epsilons: tuple[float, ...] = (2.0,)
    order: float = 2.0
    queries: int | None = None
    finish: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.generations < 1:
            raise InputError(f"Expected generations={self.generations} >= 1, e.g. 100.")
        for name in self.mechanisms:
            if name not in get_args(Attacked):
                known = ", ".join(get_args(Attacked))
                raise InputError(f"mechanism '{name}' cannot be attacked; choose of {known}.")
        for epsilon in self.epsilons:  # refuse what no budget could have before anything is trained
            Budget(epsilon, 1 if self.queries is None else self.queries)
            for name in self.mechanisms:
                _choice(name, self.order, epsilon).build(1)


def attack_own_models(
    memorising: MemorisingPlan,
    attack: AttackPlan,
    folder: Path,
    *,
    with_finetuned: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> ExtractionReport:
    """Draw codes, train on them in ``folder`` (or go on where an earlier attempt stopped), and attack."""
    progress = progress or Silent()
    codes = _begin(memorising, folder)
    layers = load_public_model(memorising.model, device=device).n_layers
    recipes = [memorising.recipe(folder, "submix", layers)]
    if with_finetuned:
        recipes.append(memorising.recipe(folder, "finetune", layers))
    runs = [_trained(recipe, progress) for recipe in recipes]
    return _attack(codes, runs, attack, folder / _ROWS, device, progress)


def attack_run(
    run: Run,
    attack: AttackPlan,
    *,
    rows_file: Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> ExtractionReport:
    """Attack a Run that was trained on a corpus of codes; an ensemble, or one model without a mechanism."""
    progress = progress or Silent()
    section = CorpusSection.model_validate(run.manifest.recipe["corpus"])
    if section.text is None or section.blocks is not None:
        raise InputError(f"{run.folder} was not trained on a corpus of codes; give one that was.")
    corpus = read_corpus(section, None, progress)
    run.check_corpus(corpus.fingerprint)
    codes = Codes.of_documents(document.text for document in corpus.documents())
    corpus.close()
    return _attack(codes, [run], attack, rows_file, device, progress)


def _begin(plan: MemorisingPlan, folder: Path) -> Codes:
    """The folder's codes, drawn once; a folder that was begun otherwise is refused."""
    make_parent(folder)
    folder.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)
    path, wanted = folder / "plan.json", asdict(plan)
    if not path.exists():
        if any(folder.iterdir()):
            raise InputError(
                f"{folder} holds other files; give an empty folder or one that this attack began."
            )
        codes = Codes.draw(plan.digits, plan.codes, plan.seed)
        write_json(path, wanted, private=True)
        codes.write(folder / "codes.jsonl")
        return codes
    begun = read_json(path, "remove the folder and begin again")
    for name, value in wanted.items():
        if begun.get(name) != value:
            raise InputError(
                f"{folder} was begun with {name}={begun.get(name)}, not {value}; give that or another folder."
            )
    if not (folder / "codes.jsonl").exists():  # interrupted between the two files
        Codes.draw(plan.digits, plan.codes, plan.seed).write(folder / "codes.jsonl")
    return Codes.read(folder / "codes.jsonl")


def _trained(recipe: Recipe, progress: Progress) -> Run:
    output = Path(recipe.output)
    if output.exists():
        return Run.open(output)
    train = train_ensemble if recipe.method == "submix" else finetune
    return train(recipe, resume=partial_folder(output).exists(), progress=progress)


def _attack(
    codes: Codes,
    runs: Sequence[Run],
    plan: AttackPlan,
    rows_file: Path | None,
    device: str,
    progress: Progress,
) -> ExtractionReport:
    rows: list[ExtractionRow] = []
    for run in runs:
        target = _Target.of(run, codes, device)
        for name, epsilon in target.wanted(plan, first=not rows):
            key = _row_key(run, plan, name, epsilon)
            known = _known_rows(rows_file)
            if key in known:
                rows.append(ExtractionRow.from_json(known[key]))
                continue
            rows.append(target.attacked(plan, name, epsilon, progress))
            if rows_file is not None:
                measured = rows[-1].to_json()
                del measured["verdict"]  # given when all rows are there
                write_json(rows_file, known | {key: measured}, private=True, overwrite=True)
        tokens = target.tree.tokens_per_generation
    verdicts = judged(rows, plan.generations)
    return ExtractionReport(
        digits=codes.digits,
        codes=len(codes.values),
        generations=plan.generations,
        tokens_per_generation=tokens,
        chance=codes.chance,
        rows=verdicts,
        notes=_notes(plan, tokens, verdicts),
    )


@dataclass(frozen=True)
class _Target:
    """The models of one Run, the codes as its tokenizer spells them, and what was asked so far."""

    run: Run
    codes: Codes
    ensemble: Ensemble
    tree: CodeTree
    places: Places

    @classmethod
    def of(cls, run: Run, codes: Codes, device: str) -> _Target:
        if run.manifest.weights == "members":
            ensemble = load_ensemble(run, device=device)
        else:  # one model is an ensemble of one part; the executor runs adapters and whole models alike
            ensemble = Ensemble(_public_of(run, device), (run.weights,), 1, 1)
        tree = CodeTree(ensemble.public.tokenizer, codes)
        return cls(run, codes, ensemble, tree, Places(ensemble, tree.prompt, tree.tokens_per_generation))

    def wanted(self, plan: AttackPlan, *, first: bool) -> Iterator[tuple[str, float | None]]:
        """The rows of this Run: name and budget."""
        if first:
            yield "public", None
        if self.run.manifest.weights != "members":
            yield "finetuned", None
            return
        yield "member", None
        yield "nonprivate", None
        for epsilon in plan.epsilons:
            for name in plan.mechanisms:
                if self.ensemble.halves == 1 and name.startswith("submix"):
                    continue  # it compares halves, which this ensemble does not have
                yield name, epsilon

    def attacked(
        self, plan: AttackPlan, name: str, epsilon: float | None, progress: Progress
    ) -> ExtractionRow:
        """One row, measured under a fresh budget."""
        tokens = self.tree.tokens_per_generation
        queries = plan.generations * tokens if plan.queries is None else plan.queries
        budget = Budget(1.0 if epsilon is None else epsilon, queries)
        choice = _choice(name, plan.order, budget.target)
        answering = Answering(
            choice,
            parts=1 if name == "member" else self.ensemble.parts,
            halves=1 if name == "member" else self.ensemble.halves,
            budget=budget,
            outside=_outside(self.ensemble),
            randbelow=_randbelow(plan.seed, name, epsilon),
        )
        private = 0
        progress.phase(f"attacking {_label(name, epsilon)}", plan.generations)

        def seen(place: Place) -> Place:
            return Place(place.members[:1, :1], place.public) if name == "member" else place

        def draw(place: Place) -> int:
            nonlocal private
            token = answering.draw(seen(place).members, place.public)
            private += not answering.operator_view().stopped
            return token

        def each(hits: int) -> None:
            progress.advance(1, f"{hits} hits")

        sampled = sample_hits(
            self.tree, self.places, draw, generations=plan.generations, finish=plan.finish, each=each
        )
        mechanism = answering.mechanism
        pmf = pmf_of(mechanism)
        analytic = None
        if pmf is not None:
            analytic = analytic_hit_rate(self.tree, self.places, lambda place: pmf(seen(place)))
        guarantee = answering.guarantee
        if name == "finetuned":
            guarantee = Guarantee.from_json(self.run.manifest.guarantee)
        return ExtractionRow(
            name=name,
            epsilon=epsilon,
            rate=clopper_pearson(sampled.hits, sampled.generations),
            hits=sampled.hits,
            distinct=sampled.distinct,
            answers=sampled.answers,
            private_answers=0 if name == "public" else private,
            analytic=analytic,
            basis=_basis(mechanism, enough=budget.queries >= plan.generations * tokens),
            chance=self.codes.chance,
            guarantee=guarantee,
            at_most=_at_most(guarantee, self.codes, tokens * budget.target),
            one_code=_one_code(guarantee, self.codes),
        )


def _public_of(run: Run, device: str) -> PublicModel:
    run.verify_weights()
    return load_public_of(run, dtype=torch.float32, device=best_device(device))


def _choice(name: str, order: float, target: float) -> RememberingChoice:
    if name in ("public", "member", "nonprivate", "finetuned"):
        return RememberingChoice(name="public" if name == "public" else "nonprivate")
    settings: dict[str, Any] = {"name": name} | _SETTINGS.get(name, {})
    return RememberingChoice(order=order, target=target, **settings)


def _outside(ensemble: Ensemble) -> tuple[str, ...]:
    private = ensemble.public.vocabulary == "private"
    return ("the vocabulary, which was built from private text",) if private else ()


def _randbelow(seed: int | None, *parts: object) -> Callable[[int], int]:
    if seed is None:
        return secrets.randbelow
    # Each row has its own stream, so that a resumed experiment draws what an uninterrupted one would.
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return random.Random(digest).randrange


def _basis(mechanism: Mechanism, *, enough: bool) -> str:
    if isinstance(mechanism, Public | NonPrivate):
        return "exact"
    if isinstance(mechanism, Certified | Individual):
        # Every answer costs at most the target, so that a budget for all answers never binds.
        return "exact" if enough else "while the budget lasts"
    return "none: noise is drawn at every answer" if pmf_of(mechanism) is None else "before STOP"


def _at_most(guarantee: Guarantee, codes: Codes, epsilon: float) -> float | None:
    if guarantee.kind != "rdp":
        return None
    one = replace(guarantee, epsilon=min(epsilon, guarantee.epsilon or epsilon))
    return min(1.0, len(codes.values) * one.extraction(codes.candidates).bound)


def _one_code(guarantee: Guarantee, codes: Codes) -> float | None:
    return guarantee.extraction(codes.candidates).bound if guarantee.kind == "rdp" else None


def _label(name: str, epsilon: float | None) -> str:
    return name if epsilon is None else f"{name}, epsilon {epsilon:g}"


def _row_key(run: Run, plan: AttackPlan, name: str, epsilon: float | None) -> str:
    settings = (plan.generations, plan.order, plan.queries, plan.finish, plan.seed)
    weights = sorted(run.weights_sha256().items())
    digest = hashlib.sha256(repr((weights, settings)).encode()).hexdigest()[:16]
    return f"{_label(name, epsilon)}, {digest}"


def _known_rows(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    return read_json(path, "remove it and measure again")


def _notes(plan: AttackPlan, tokens: int, rows: Sequence[ExtractionRow]) -> tuple[str, ...]:
    notes = [
        "A hit: the generated text is an optional space, then the digits of a secret code, whatever follows.",
        f"A generation is at most {tokens} tokens, and every token is a query.",
    ]
    if not plan.finish:
        notes.append("Generations that can no longer hit are given up, which saves the attacker budget.")
    mean = next((row for row in rows if row.name == "nonprivate"), None)
    if not any(row.name in CONTROLS and row.verdict == "extracts" for row in rows):
        notes.append(
            "The unprotected models do not extract either: nothing was memorised that so many generations "
            "could find, and so no row shows that a mechanism prevented anything."
        )
    elif mean is not None and mean.verdict != "extracts":
        notes.append(
            "Members that memorised different codes disagree at every digit, so that even their plain mean "
            "does not extract: rows at chance do not show by themselves that a mechanism prevented anything."
        )
    if any(row.guarantee.kind == "rop" for row in rows):
        notes.append("Operational privacy holds for this corpus only and gives no extraction certificate.")
    return tuple(notes)
