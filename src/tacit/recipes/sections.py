"""The sections that every method has, or that ensembles have."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tacit.recipes.fields import DEFAULT_MODEL, Count, Flag, Name, Real, Section, Share, Tokens, Whole


class ModelSection(Section):
    """The public model: what everybody could have without the private text."""

    name: Name = DEFAULT_MODEL
    revision: Name | None = None
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    start_token: Annotated[Whole, Field(ge=0)] | None = None
    trust_remote_code: Flag = False


def one_is_not_true(value: Any) -> Any:
    """Of auto, true and false: what YAML reads as a number is none of them."""
    return value if isinstance(value, bool | str) else repr(value)


class CorpusSection(Section):
    """Whose text is whose. Columns are named, never guessed.

    `screened` is for what `tacit corpus screen` wrote, where ``<MASK>`` is one token and stands for what was
    masked; `auto` knows such a file by its layout. In any other text it is six characters.
    """

    path: Name
    format: Literal["auto", "jsonl", "csv", "parquet", "text", "datasets"] = "auto"
    user: Name | None = None
    text: Name | None = None
    messages: Name | None = None
    chat: Literal["template", "plain"] = "template"
    document: Literal["file", "paragraph", "line"] = "file"
    config: Name | None = None
    split: Name | None = None
    revision: Name | None = None
    blocks: Tokens | None = None
    skip_bad: Flag = False
    public: Flag = False
    screened: Literal["auto", True, False] = "auto"

    @field_validator("screened", mode="before")
    @classmethod
    def _one_is_not_true(cls, value: Any) -> Any:
        return one_is_not_true(value)


class HeldOutSection(Section):
    """Which text is kept for measuring, never for training.

    share   of the users, or (by: within) of each user's documents
    among   by: within: only the first so many documents are split, and those behind them stay in training.
            `tacit corpus plant` puts canaries behind the corpus and tells how many documents that has
    """

    share: Share = 0.2
    by: Literal["user", "within"] = "user"
    seed: Whole = 0
    among: Count | None = None

    @model_validator(mode="after")
    def _among_is_within_users(self) -> Self:
        if self.among is not None and self.by == "user":
            raise ValueError(
                "'among' is for by 'within': a user is held out with all text; remove it or set by: within"
            )
        return self


class AdapterSection(Section):
    """Which weights may change. Layers below `trunk_layers` stay the public model's."""

    kind: Literal["lora", "top", "full"] = "lora"
    rank: Annotated[Whole, Field(ge=1, le=4096)] = 16
    alpha: Annotated[Real, Field(gt=0)] = 32.0
    dropout: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    targets: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    trunk_layers: Annotated[Whole, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _full_has_no_trunk(self) -> Self:
        if self.kind == "full" and self.trunk_layers:
            raise ValueError(
                "kind 'full' trains every layer, so trunk_layers must be 0; kind 'top' keeps a trunk"
            )
        if self.kind == "top" and not self.trunk_layers:
            raise ValueError("kind 'top' needs trunk_layers of at least 1; kind 'full' trains every layer")
        return self

    @model_validator(mode="after")
    def _only_lora_has_low_rank_settings(self) -> Self:
        # By value, not by what was written: the recipe in a Run has every key.
        for name in ("rank", "alpha", "dropout", "targets"):
            if self.kind != "lora" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"'{name}' belongs to kind 'lora' and would be ignored by kind '{self.kind}'; remove "
                    f"adapter.{name}"
                )
        return self


class EarlyStopSection(Section):
    """Stop when the loss on *public* text stops falling; private text would steer what is released."""

    public_text: Name
    patience: Count = 2
    every: Count = 50


class TrainingSection(Section):
    """The optimisation: AdamW or plain SGD, linear warm-up, linear decay, clipping of the whole gradient.

    `submix` takes `max_steps` steps whatever `epochs` says: its length must not depend on private text. In
    private training `batch_size` times `accumulate` is the *expected* batch. `<MASK>` is context that nobody
    is taught to write, unless `learn_masks` says so.
    """

    epochs: Count = 3
    max_steps: Count | None = None
    block_size: Tokens = 256
    batch_size: Count = 8
    accumulate: Count = 1
    optimiser: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 5e-4
    weight_decay: Annotated[Real, Field(ge=0)] = 0.0
    warmup: Annotated[Real, Field(ge=0, le=1)] = 0.1
    clip: Annotated[Real, Field(gt=0)] = 1.0
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    early_stop: EarlyStopSection | None = None
    learn_masks: Flag = False

    @model_validator(mode="after")
    def _only_sgd_takes_large_steps(self) -> Self:
        if self.optimiser == "adamw" and self.learning_rate > 1:
            raise ValueError(
                f"learning_rate={self.learning_rate:g} is more than 1, which AdamW never survives; lower it, "
                "or set optimiser to sgd"
            )
        return self


class EnsembleSection(Section):
    """The members of `method: submix`: two per part, or one where the mechanism needs no halves."""

    parts: Annotated[Whole, Field(ge=1, le=10_000)] = 8
    halves: Flag = True
    assign: Literal["hash", "balanced"] = "hash"
    key: Name | None = None
    joint: Literal["auto", True, False] = "auto"

    @field_validator("joint", mode="before")
    @classmethod
    def _one_is_not_true(cls, value: Any) -> Any:
        return one_is_not_true(value)


class PerformanceSection(Section):
    """What changes time and memory, and nothing about the result but for rounding.

    `engine` is how private steps find the gradient of each example, and `microbatch` how many rows they
    compute at once.
    """

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$")] = "auto"
    trunk_cache: Literal["memory", "disk", "off"] = "memory"
    threads: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    checkpoint_every: Count = 100
    engine: Literal["auto", "bookkeeping", "loop"] = "auto"
    microbatch: Count | None = None

    @field_validator("trunk_cache", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML reads a bare off as false
