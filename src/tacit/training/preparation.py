"""What every method needs before its first step: the corpus, split and encoded, and the public model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from tacit.corpus import HeldOutSplit, UserCorpus, read_corpus, split_held_out
from tacit.errors import InputError, RecipeError
from tacit.models.loading import PublicModel, best_device, dtype_named, load_public_model
from tacit.models.masks import with_mask
from tacit.models.tokenizer import PublicTokenizer, load_tokenizer
from tacit.progress import Progress
from tacit.recipes import PRIVATE_METHODS, HeldOutSection, ModelSection, Recipe
from tacit.training.encoding import EncodedCorpus, Rows, encode, lay_out
from tacit.training.next_token import can_pack
from tacit.training.public_text import read_public_text, refuse_no_check, refuse_private_text
from tacit.training.schedule import Schedule


@dataclass(frozen=True)
class SplitCorpus:
    """A corpus cut into what is trained on and what is only measured on."""

    whole: UserCorpus
    train: UserCorpus
    held_out: UserCorpus | None


@dataclass(frozen=True)
class Materials:
    """All that a training method starts from, before pieces are laid out as rows."""

    recipe: Recipe
    public: PublicModel
    corpus: SplitCorpus
    encoded: EncodedCorpus
    packing: bool


@dataclass(frozen=True)
class Prepared:
    """All that training one model starts from."""

    recipe: Recipe
    public: PublicModel
    corpus: SplitCorpus
    encoded: EncodedCorpus
    rows: Rows
    public_text: UserCorpus | None = None  # to stop early by, where the recipe says so

    @classmethod
    def of(cls, materials: Materials, rows: Rows) -> Self:
        """The materials laid out."""
        return cls(materials.recipe, materials.public, materials.corpus, materials.encoded, rows)


def prepare(recipe: Recipe, storage: Path, progress: Progress) -> Prepared:
    """The materials with all of the training text laid out as rows, and the public text to stop early by."""
    public_text = read_public_text(recipe, storage)
    materials = gather(recipe, storage, progress)
    if public_text is not None:
        refuse_private_text(recipe, public_text, materials.corpus.whole)
    rows = lay_out(materials.encoded, block_size=recipe.training.block_size, packing=materials.packing)
    refuse_no_check(recipe, Schedule(rows, recipe.training, seed=0).steps)
    return replace(Prepared.of(materials, rows), public_text=public_text)


def gather(recipe: Recipe, storage: Path, progress: Progress) -> Materials:
    """Read, split and encode the corpus, and load the public model. Cheap checks come first.

    Copies of the text lie in ``storage``; the corpus has to be closed before the folder is removed.
    """
    best_device(recipe.performance.device)
    tokenizer = tokenizer_of(recipe.model)
    corpus = split(read_corpus(recipe.corpus, tokenizer, progress, storage=storage), recipe.held_out)
    public = load_model(
        recipe.model, frozen_base=recipe.adapter.kind == "lora", device=recipe.performance.device
    )
    if recipe.method == "submix":
        public.require_public()
    if recipe.method in PRIVATE_METHODS and public.holds_private_text:
        raise InputError(
            f"{public.name} was trained on private text, which noise on top of it does not hide; start from "
            "the public model that it was made from."
        )
    if corpus.whole.has_masks:
        if recipe.method == "submix":
            raise RecipeError(
                "method 'submix' has no token for the masks of a screened corpus; set corpus.screened=false "
                "to read <MASK> as text, or give the raw corpus."
            )
        public = with_mask(public)
    block_size = fitting_block_size(recipe.training.block_size, public)
    encoded = encode(
        corpus.train,
        public.tokenizer,
        block_size=block_size,
        storage=storage / "tokens.int32",
        end_token=tokenizer.tokenizer.eos_token_id,
        learn_masks=recipe.training.learn_masks,
        progress=progress,
    )
    # A recurrent state cannot be told to ignore what came before in its row: an LSTM's rows hold one piece.
    return Materials(recipe, public, corpus, encoded, packing=can_pack(public))


def tokenizer_of(section: ModelSection) -> PublicTokenizer:
    """The public tokenizer that a recipe names."""
    return load_tokenizer(
        section.name,
        revision=section.revision,
        trust_remote_code=section.trust_remote_code,
        start_token=section.start_token,
    )


def dtype_of(section: ModelSection, device: str | torch.device) -> torch.dtype:
    """The precision a recipe asks for; ``auto`` takes bf16 only where the processor computes in it."""
    return dtype_named(section.dtype, device)


def load_model(section: ModelSection, *, frozen_base: bool, device: str) -> PublicModel:
    """The public model that a recipe names.

    Only a base that stays frozen is stored in bf16. Weights that are trained stay in fp32, because an
    update is often smaller than a bf16 step; they compute in bf16 under autocast instead.
    """
    public = load_public_model(
        section.name,
        dtype=dtype_of(section, device) if frozen_base else torch.float32,
        device=device,
        revision=section.revision,
        trust_remote_code=section.trust_remote_code,
        start_token=section.start_token,
    )
    if public.family == "lstm":
        # Adapters of LSTM gates are added to the weight itself, and bf16 would round most of them away.
        public.model.float()
    return public


def split(corpus: UserCorpus, section: HeldOutSection | None) -> SplitCorpus:
    """Hold out what the recipe says, or nothing."""
    if section is None:
        return SplitCorpus(corpus, corpus, None)
    sides = _sides(corpus, section)
    return SplitCorpus(corpus, sides.train, sides.held_out)


def held_out_of(corpus: UserCorpus, section: HeldOutSection) -> UserCorpus:
    """The held-out side of a corpus that was split so for training."""
    return _sides(corpus, section).held_out


def _sides(corpus: UserCorpus, section: HeldOutSection) -> HeldOutSplit:
    return split_held_out(corpus, share=section.share, by=section.by, seed=section.seed, among=section.among)


def fitting_block_size(block_size: int, public: PublicModel) -> int:
    """The block size, refused where the model cannot look that far."""
    if block_size > public.context_length:
        raise RecipeError(
            f"training.block_size={block_size} is longer than the model's context of "
            f"{public.context_length} tokens; choose at most that."
        )
    return block_size
