"""What `tacit evaluate` measures: a Run beside its public model, or a public model alone.

Both are measured in fp32, whatever they were trained in, so that two reports can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tacit.corpus import UserCorpus, read_corpus
from tacit.errors import InputError
from tacit.evaluation.perplexity import Losses, measure_losses, perplexity_difference
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.tokenizer import PublicTokenizer, load_tokenizer
from tacit.models.trained import load_trained
from tacit.progress import Progress, Silent
from tacit.recipes import CorpusSection, Recipe, parse_recipe
from tacit.runs import Run
from tacit.statistics import FEW_USERS, Estimate
from tacit.training.preparation import held_out_of

OUTSIDE = "Measured on private text: for the operator, outside any guarantee."
OUTSIDE_MODEL = "Measured with weights that read private text: for the operator, outside any guarantee."
PUBLIC = "public"
NOT_PUBLIC = "not public"  # a base that was itself trained on private text


@dataclass(frozen=True)
class MeasuredText:
    """Which text was measured on: what a Run held out of its corpus, or other text."""

    corpus: str
    held_out: bool
    private: bool
    private_model: bool = False  # what was measured has read private text

    @classmethod
    def of(cls, section: CorpusSection, *, held_out: bool, private_model: bool) -> Self:
        """The text of a corpus; a file is named by its whole path."""
        path = Path(section.path)
        name = str(path.absolute()) if path.exists() else section.path
        return cls(name, held_out, not section.public, private_model)

    @classmethod
    def for_run(cls, run: Run, corpus: CorpusSection | None) -> Self:
        """A Run's own held-out text, or other text that it is measured on."""
        section = recipe_of(run).corpus if corpus is None else corpus
        private_model = run.manifest.guarantee.get("kind") != "public"
        return cls.of(section, held_out=corpus is None, private_model=private_model)

    @property
    def suffix(self) -> str:
        """Of the name that a measurement is recorded under: other text never replaces the held-out result."""
        return "" if self.held_out else "_other_text"

    def caveats(self, users: int) -> tuple[str, ...]:
        """What to say of any measurement on this text of so many users."""
        told = []
        if users == 1:
            told.append("One user: there is no interval, because nothing is known of other users.")
        elif users < FEW_USERS:
            told.append(f"Fewer than {FEW_USERS} users: these intervals are too narrow.")
        if self.private:
            told.append(OUTSIDE)
        elif self.private_model:
            told.append(OUTSIDE_MODEL)
        return tuple(told)

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {"corpus": self.corpus, "held_out": self.held_out}


@dataclass(frozen=True)
class EvaluationReport:
    """Models measured on the same text, the one that is asked about last."""

    models: dict[str, Losses]
    guarantee: str | None
    text: MeasuredText

    @property
    def difference(self) -> Estimate | None:
        """Perplexity of the model less that of the public one, where both were measured."""
        *others, last = self.models.values()
        return perplexity_difference(last, others[0]) if others else None

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        first = next(iter(self.models.values()))
        told = []
        if first.unknown_tokens:
            told.append(
                f"{first.unknown_share:.1%} of the tokens stand for unknown words, which are predicted "
                "without being spelt: bits per byte are too low, and not to be compared with those of other "
                "tokenizers."
            )
        if first.masks:
            told.append(f"{first.masks} masks of screened text were read and not counted.")
        return (*told, *self.text.caveats(len(first.users)))

    def to_json(self) -> dict[str, Any]:
        """Summary without anything about single users."""
        difference = self.difference
        return {
            "models": {name: losses.to_json() for name, losses in self.models.items()},
            "difference": None if difference is None else difference.to_json(),
            "guarantee": self.guarantee,
            "text": self.text.to_json(),
            "caveats": list(self.caveats),
        }


def evaluate_public_model(
    name: str,
    corpus: CorpusSection,
    *,
    block_size: int,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Measure a public model on some text."""
    progress = progress or Silent()
    text = read_corpus(corpus, load_tokenizer(name, trust_remote_code=trust_remote_code), progress)
    public = load_public_model(name, device=device, trust_remote_code=trust_remote_code)
    losses = measure_losses(public, text, block_size=block_size, progress=progress)
    return EvaluationReport(
        {_label(public): losses},
        public.statement,
        MeasuredText.of(corpus, held_out=False, private_model=public.holds_private_text),
    )


def evaluate_run(
    run: Run,
    corpus: CorpusSection | None = None,
    *,
    block_size: int,
    with_public: bool = True,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Measure a Run on its own held-out text, or on ``corpus``, and record the result in it.

    What is measured on other text is recorded under names of its own, beside the held-out result.
    """
    progress = progress or Silent()
    run.metrics()  # a damaged file is found now, not when the measurement is done
    trained = load_trained(run, device=device, trust_remote_code=trust_remote_code)
    tokenizer = trained.public.tokenizer
    text = (
        held_out_text(run, tokenizer, progress)
        if corpus is None
        else read_corpus(corpus, tokenizer, progress)
    )
    models: dict[str, Losses] = {}
    if with_public:
        models[_label(trained.public)] = measure_losses(
            trained.public, text, block_size=block_size, progress=progress
        )
    models[run.manifest.method] = measure_losses(
        trained.public, text, block_size=block_size, model=trained.model, progress=progress
    )
    measured = MeasuredText.for_run(run, corpus)
    report = EvaluationReport(models, run.manifest.guarantee["statement"], measured)
    run.record_metrics(f"evaluation{measured.suffix}", report.to_json())
    run.record_private(
        f"perplexity_by_user{measured.suffix}.json",
        {
            name: dict(zip(losses.users, losses.perplexity_by_user().tolist(), strict=True))
            for name, losses in models.items()
        },
    )
    return report


def _label(public: PublicModel) -> str:
    return NOT_PUBLIC if public.holds_private_text else PUBLIC


def recipe_of(run: Run) -> Recipe:
    """The recipe that a Run was trained from."""
    return parse_recipe(run.manifest.recipe, origin=str(run.folder / "run.json"))


def held_out_text(run: Run, tokenizer: PublicTokenizer, progress: Progress) -> UserCorpus:
    """The text that a Run held out when it was trained; refused where the corpus is no longer the same."""
    recipe = recipe_of(run)
    if recipe.held_out is None:
        raise InputError(f"{run.folder} held nothing out; give --corpus FILE with --user and --text.")
    whole = read_corpus(recipe.corpus, tokenizer, progress)
    run.check_corpus(whole.fingerprint)
    return held_out_of(whole, recipe.held_out)
