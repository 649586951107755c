"""A whole recipe: which sections belong to which method, and what contradicts what."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import model_validator

from tacit.recipes.fields import Name, Section
from tacit.recipes.private import (
    ConfidentialitySection,
    PrivacySection,
    PublicPhaseSection,
    SelectiveSection,
)
from tacit.recipes.regularised import DEFAULTS_OF, RegularisationSection
from tacit.recipes.sections import (
    AdapterSection,
    CorpusSection,
    EnsembleSection,
    HeldOutSection,
    ModelSection,
    PerformanceSection,
    TrainingSection,
)

Method = Literal["finetune", "submix", "dpsgd", "crt", "selective", "adversarial", "triplet"]

PRIVATE_METHODS: Final = ("dpsgd", "crt", "selective")
REGULARISED_METHODS: Final = ("adversarial", "triplet")  # steered away from authors; nothing is promised
# Sections that are there for some methods only, and whether these have them without being asked.
_METHODS_OF: Final[dict[str, tuple[str, ...]]] = {
    "ensemble": ("submix",),
    "privacy": PRIVATE_METHODS,
    "confidentiality": ("crt",),
    "public_phase": ("crt",),
    "selective": ("selective",),
    "regularisation": REGULARISED_METHODS,
}
_HAVE_DEFAULTS: Final = ("ensemble", "confidentiality", "public_phase", "regularisation")


class Recipe(Section):
    """A whole recipe for `tacit train`."""

    method: Method = "finetune"
    output: Name
    model: ModelSection = ModelSection()
    corpus: CorpusSection
    held_out: HeldOutSection | None = HeldOutSection()
    adapter: AdapterSection = AdapterSection()
    training: TrainingSection = TrainingSection()
    ensemble: EnsembleSection | None = None
    privacy: PrivacySection | None = None
    confidentiality: ConfidentialitySection | None = None
    public_phase: PublicPhaseSection | None = None
    selective: SelectiveSection | None = None
    regularisation: RegularisationSection | None = None
    performance: PerformanceSection = PerformanceSection()

    @model_validator(mode="before")
    @classmethod
    def _a_method_brings_its_defaults(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        method = content.get("method")
        for name in _HAVE_DEFAULTS:
            if method in _METHODS_OF[name] and content.get(name) is None:
                content = content | {name: {}}
        section = content.get("regularisation")
        if method in DEFAULTS_OF and isinstance(section, dict):
            content = content | {"regularisation": DEFAULTS_OF[method] | section}
        privacy = content.get("privacy")
        if method in ("crt", "selective") and isinstance(privacy, dict):
            # A secret is replaced and its data point stays: there is one kind of neighbours.
            content = content | {"privacy": {"adjacency": "replace-one"} | privacy}
        return content

    @model_validator(mode="after")
    def _sections_fit_the_method(self) -> Self:
        foreign = [
            name
            for name, methods in _METHODS_OF.items()
            if getattr(self, name) is not None and self.method not in methods
        ]
        if foreign:
            methods = _METHODS_OF[foreign[0]]
            without = " ".join(f"{name}=null" for name in foreign)  # a recipe's own section goes by that
            raise ValueError(
                f"the section '{foreign[0]}' is for method {_either(methods)}, not '{self.method}'; remove "
                f"it ({without}) or set method={methods[0]}"
            )
        if self.method == "submix":
            self._check_ensemble()
        elif self.method in PRIVATE_METHODS:
            self._check_private()
        elif self.regularisation is not None:
            self._check_regularised(self.regularisation)
        return self

    def _check_regularised(self, section: RegularisationSection) -> None:
        if (ignored := section.foreign_key(self.method)) is not None:
            whose = "schedule 'linear'" if ignored == "ramp" else "the other regulariser"
            if ignored == "margin" and section.paper_eq4:
                whose = "paper_eq4=false"
            raise ValueError(
                f"'regularisation.{ignored}' is for {whose} and would be ignored here; remove it"
            )
        if self.method == "triplet" and self.training.batch_size < section.smallest_batch:
            raise ValueError(
                f"'training.batch_size'={self.training.batch_size} is too small for regularisation.pairs="
                f"{section.pairs}, which compares an author's texts with each other and with another's; set "
                f"training.batch_size={section.smallest_batch} or more"
            )
        if self.corpus.blocks is not None:
            raise ValueError(
                "'corpus.blocks' makes an author of every block, so that there is nobody to hide; remove it "
                "and name corpus.user"
            )
        if section.label is not None and self.corpus.skip_bad:
            raise ValueError(
                "'regularisation.label' is read beside the text, row by row; correct bad rows and remove "
                "corpus.skip_bad"
            )

    def _check_private(self) -> None:
        if self.privacy is None:
            raise ValueError(
                f"method '{self.method}' needs a section 'privacy'; give for example privacy.epsilon=8 and "
                "privacy.delta=1e-5"
            )
        if self.training.early_stop is not None:
            raise ValueError(
                f"method '{self.method}' takes the number of steps that its account is for; remove "
                "'training.early_stop' and give training.epochs or training.max_steps"
            )
        # What crt and selective learn without noise is clipped as plain training is.
        if self.method == "dpsgd" and self.training.clip != TrainingSection.model_fields["clip"].default:
            raise ValueError(
                f"'training.clip' would be ignored by method '{self.method}', which clips every example; "
                "remove it and set privacy.clip"
            )
        if self.corpus.blocks is not None and (self.method != "dpsgd" or self.privacy.unit == "user"):
            raise ValueError(
                "'corpus.blocks' tears data points and users apart; remove it, or set method=dpsgd with "
                "privacy.unit=example, where a block is an example"
            )
        if self.method == "dpsgd":
            return
        if self.privacy.adjacency != "replace-one":
            raise ValueError(
                f"with method '{self.method}' a secret is replaced and its text stays, which is "
                "'replace-one'; remove privacy.adjacency"
            )
        if self.privacy.unit != "example":
            raise ValueError(
                f"method '{self.method}' protects secrets in data points, not users; remove privacy.unit, or "
                "set method=dpsgd"
            )
        if self.method == "selective":
            self._check_selective(self.privacy)
            return
        if self.privacy.examples is not None:
            # The certificate counts data points, and of stated ones the empty would be neither kind.
            raise ValueError(
                "the number of private data points of method 'crt' is known without a statement: replacing a "
                "secret does not change it; remove privacy.examples"
            )
        if self.training.max_steps is not None:
            raise ValueError(
                "method 'crt' takes whole epochs over public and private text; remove training.max_steps"
            )
        if self.corpus.screened is False:
            raise ValueError(
                "method 'crt' learns from what tacit corpus screen wrote; give that file and remove "
                "corpus.screened"
            )

    def _check_selective(self, privacy: PrivacySection) -> None:
        if self.selective is None:
            raise ValueError(
                "method 'selective' needs 'selective.screened', the file of tacit corpus screen that says "
                "what is sensitive; give selective.screened=FILE"
            )
        if self.adapter.kind != "full":
            raise ValueError(
                "method 'selective' is for LSTMs with one layer, all of whose weights are trained; set "
                "adapter.kind=full"
            )
        for name in ("group", "clipping", "examples"):
            if getattr(privacy, name) != PrivacySection.model_fields[name].default:
                raise ValueError(f"'privacy.{name}' is not for method 'selective'; remove it")
        if self.training.max_steps is not None:
            raise ValueError(
                "method 'selective' is accounted by its passes over the text; remove training.max_steps and "
                "give training.epochs"
            )

    def _check_ensemble(self) -> None:
        # How long a member learns, and on what shapes, must not depend on what any part holds.
        if self.training.max_steps is None:
            raise ValueError(
                "method 'submix' needs 'training.max_steps', the public number of steps that every member "
                "takes; give for example training.max_steps=200"
            )
        if self.training.early_stop is not None:
            raise ValueError(
                "with method 'submix' every member takes training.max_steps steps; remove "
                "'training.early_stop'"
            )
        if self.training.optimiser != "adamw":
            raise ValueError("members of method 'submix' are trained by AdamW; remove training.optimiser")
        if self.corpus.screened is True:
            raise ValueError(
                "method 'submix' has no token for the masks of a screened corpus; set corpus.screened=false "
                "to read <MASK> as text, or give the raw corpus"
            )
        if self.ensemble is not None and self.ensemble.joint is True:
            self._refuse_what_cannot_be_joint()

    def _refuse_what_cannot_be_joint(self) -> None:
        if self.adapter.kind != "lora":
            raise ValueError(
                f"members of adapter.kind '{self.adapter.kind}' share no layer and are trained one by one; "
                "set ensemble.joint=false, or adapter.kind=lora"
            )
        if self.adapter.dropout:
            raise ValueError(
                f"adapter.dropout={self.adapter.dropout:g} is not possible for members trained jointly; set "
                "ensemble.joint=false, or adapter.dropout=0"
            )

    def to_json(self) -> dict[str, Any]:
        """JSON form, as saved in a Run."""
        return self.model_dump(mode="json", by_alias=True)


def _either(methods: tuple[str, ...]) -> str:
    quoted = [f"'{method}'" for method in methods]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
