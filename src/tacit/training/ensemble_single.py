"""A member trained by itself, as any model is fine-tuned: for `top` and `full`, dropout, or on request.

Formal guarantee: no other member's text is in reach. The caller gives a fresh public model for each member,
so that nothing of one member's training can be left over in the next one's.

Batches, starting values and learning rates are those of joint training; both ways agree but for rounding.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from tacit.errors import TrainingDiverged
from tacit.files import new_folder
from tacit.models.adapters import save_weights
from tacit.progress import Progress
from tacit.training.checkpoint import trainable
from tacit.training.ensemble_schedule import Member, MemberSchedule
from tacit.training.finetune import task_for
from tacit.training.loop import optimise
from tacit.training.preparation import Materials, Prepared

_PEFT_PREFIX = "base_model.model."


def train_alone(
    materials: Materials,
    member: Member,
    stream: int,
    folder: Path,
    *,
    holds_private_text: bool,
    checkpoint_folder: Path,
    work: Path,
    progress: Progress,
) -> float:
    """Train one member on its own rows and write it to ``folder``; returns its last loss per token.

    ``materials`` bring a public model that nothing has been trained on. A member without text is saved as
    the public model: an adapter of zeros, or the model itself.
    """
    recipe, public = materials.recipe, materials.public
    lora = recipe.adapter.kind == "lora"
    # An adapter learns on the frozen model as it is; whole layers learn with the dropout that they have.
    task = task_for(Prepared.of(materials, member.rows), base_dropout=not lora)
    if lora:
        start_adapter(task.model, stream if len(member.rows) else None)
        task.model.peft_config["default"].base_model_name_or_path = public.name  # type: ignore[index,union-attr]
    loss = math.nan
    if len(member.rows):
        place = work / f"trunk-{member.name}"
        place.mkdir(mode=0o700)
        task.cache_trunk(recipe.performance, place, progress)
        outcome = optimise(
            task.model,
            task.summed_loss,
            task.make_batch,
            MemberSchedule(member.rows, recipe.training, stream),
            checkpoint_folder=checkpoint_folder,
            checkpoint_every=recipe.performance.checkpoint_every,
            progress=progress,
        )
        loss = outcome.final_loss
    else:
        progress.phase("training", recipe.training.max_steps)
        progress.advance(recipe.training.max_steps or 0)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trainable(task.model).values()):
        raise TrainingDiverged("The trained weights are not finite; lower training.learning_rate.")
    with new_folder(folder, private=True) as new:
        save_weights(task.model, new, public, holds_private_text=holds_private_text)
    return loss


@torch.no_grad()
def start_adapter(model: nn.Module, stream: int | None) -> None:
    """Give PEFT's layers the values that a stacked member starts from; None: zeros, which never change.

    The order of the draws (layer names sorted, inputs before ranks) is `AdapterStack.initialise_member`'s.
    """
    generator = None if stream is None else torch.Generator().manual_seed(stream)
    layers = {
        name.removeprefix(_PEFT_PREFIX): module
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    }
    for _, layer in sorted(layers.items()):
        a_RI, b_OR = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        b_OR.zero_()
        a_RI.zero_()
        if generator is not None:
            reach = 1 / math.sqrt(a_RI.shape[1])
            drawn_IR = torch.empty(a_RI.shape[1], a_RI.shape[0]).uniform_(-reach, reach, generator=generator)
            a_RI.copy_(drawn_IR.T)
