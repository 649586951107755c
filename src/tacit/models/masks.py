"""The mask token of a model that reads screened text: one more row, a function of the public rows alone.

What holds: the row of ``<MASK>`` in the embedding and in the head is the mean of all others, so that nothing
private decides it, and no other row moves. A text without a mask has the same states as before, and every
other token the same logit. An adapter that was trained on screened text may therefore be put on the public
model as it is, by whoever needs no masks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tacit.models.loading import PublicModel
from tacit.models.quiet import quiet
from tacit.models.tokenizer import PublicTokenizer


def with_mask(public: PublicModel) -> PublicModel:
    """The public model with a token for what a screening hid; the model itself is given the row.

    One whose tokenizer has the token already, such as one that was trained on screened text, stays as it is.
    """
    if public.tokenizer.mask_token is not None:
        return public
    tokenizer = public.tokenizer.with_mask()
    _give_row(public.model, tokenizer)
    return replace(public, tokenizer=tokenizer)


@torch.no_grad()
def _give_row(model: PreTrainedModel, tokenizer: PublicTokenizer) -> None:
    mask = tokenizer.mask_token
    assert mask is not None  # noqa: S101 - the caller has given it one
    if len(model.get_input_embeddings().weight) <= mask:
        with quiet():
            model.resize_token_embeddings(mask + 1, mean_resizing=False)
        model.requires_grad_(False)
    head = model.get_output_embeddings()
    # The rows of a tied model are one tensor, and a mean of rows that already has the mean is the same.
    for rows in (model.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)):
        if rows is not None:
            _set_mean(rows, mask)


def _set_mean(rows: Tensor, mask: int) -> None:
    rows[mask] = rows[:mask].double().mean(dim=0).to(rows.dtype)
