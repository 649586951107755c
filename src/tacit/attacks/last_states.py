"""h_x: what enters a model's head at the last token that it reads of a text.

One number per coordinate and text, in the order of the texts. Texts run side by side, similar lengths
together, padded on the right: in a causal model nothing that counts can see the padding, and the state of a
text is taken at its own last token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacit.attacks.token_statistics import DEFAULT_POSITIONS, LanguageModel, public_of
from tacit.errors import InputError, ModelError
from tacit.models.likelihood import NextTokenLoss
from tacit.progress import Progress, Silent
from tacit.statistics import FloatArray


@torch.no_grad()
def last_states(
    sequences: Sequence[Sequence[int]],
    model: LanguageModel,
    *,
    positions: int = DEFAULT_POSITIONS,
    progress: Progress | None = None,
) -> FloatArray:
    """The last states [texts, width] of some texts.

    Args:
        sequences: the token ids that the model reads of each text, its start token included.
        model: any model, public or trained.
        positions: positions, padding included, that run at a time.
        progress: told of every text.
    """
    if not sequences or not all(sequences):
        raise InputError("Expected at least one text, and a token or more of each.")
    if positions < 1:
        raise InputError(f"Expected positions={positions} >= 1, e.g. {DEFAULT_POSITIONS}.")
    progress = progress or Silent()
    progress.phase("reading states", len(sequences))
    network, padding = model.model, public_of(model).start_token
    entering = NextTokenLoss(network)
    device = next(network.parameters()).device
    lengths = np.array([len(one) for one in sequences])
    # The longest first: where memory is short, that shows at once and not at the end.
    order = np.argsort(-lengths, kind="stable")
    found: FloatArray | None = None
    was_training = network.training
    network.eval()
    try:
        begin = 0
        while begin < len(order):
            width = int(lengths[order[begin]])
            rows = order[begin : begin + max(1, positions // width)]
            begin += len(rows)
            inputs = np.full((len(rows), width), padding, dtype=np.int64)
            for line, text in enumerate(rows):
                inputs[line, : lengths[text]] = sequences[text]
            ids = torch.from_numpy(inputs).to(device)

            def logits(ids: Tensor = ids) -> Tensor:
                made: Tensor = network(input_ids=ids, use_cache=False).logits
                return made

            states = entering.states(logits)
            last = torch.from_numpy(lengths[rows] - 1).to(device)
            own = states[torch.arange(len(rows), device=device), last].double().cpu().numpy()
            if found is None:
                found = np.empty((len(sequences), own.shape[1]))
            found[rows] = own
            progress.advance(len(rows))
    finally:
        network.train(was_training)
    assert found is not None  # noqa: S101 - there is a text
    if not np.isfinite(found).all():
        raise ModelError("The model's states are not finite numbers; it is damaged.")
    return found
