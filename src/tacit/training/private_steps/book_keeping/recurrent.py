"""LSTM layers that keep books.

With ``gates_t = W_x x_t + W_h h_(t-1) + b``, the gradient by the gates at all positions is all that the books
need: it meets x for one weight and the earlier h for the other. The recurrence is written out here, forwards
and backwards, with everything that does not depend on the step before computed for all steps at once.

Shapes are time first: T steps, B examples, H the hidden size, G four times that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models.lstm import LayerState, LSTMLayer, effective_bias, effective_weight
from tacit.training.private_steps.book_keeping.books import Books
from tacit.training.private_steps.book_keeping.products import Inner, add_inner


def recorded_lstm(
    layer: LSTMLayer, books: Books, x: Tensor, state: LayerState | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, LayerState]:
    """The layer's forward pass over [B, T, inputs], from a zero state as in training."""
    if state is not None or lengths is not None:
        raise ModelError("An LSTM that is trained privately starts every example from a zero state.")
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    # The recurrence writes into its own tensors, where autocast would mix precisions: it has the weights'.
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(effective_bias(layer.input_gates).dtype)
        outputs, cell = _RecordedLSTM.apply(x, layer, books, *trained)  # type: ignore[no-untyped-call]
    return outputs, LayerState(outputs[:, -1], cell)


class _RecordedLSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_BTI: Tensor, layer: LSTMLayer, books: Books, *_: nn.Parameter
    ) -> tuple[Tensor, Tensor]:
        """Hidden states after every step, and the last cell state."""
        size, (examples, time, _width) = layer.hidden_size, x_BTI.shape
        weight_x, weight_h = effective_weight(layer.input_gates), effective_weight(layer.recurrent_gates)
        bias = effective_bias(layer.input_gates) + effective_bias(layer.recurrent_gates)
        flat = x_BTI.transpose(0, 1).reshape(time * examples, -1)  # no copy above another recurrent layer
        inner = books.how.inner_for(flat)
        gates_TBG = _squashed_first(bias).repeat(time * examples, 1)
        gates_TBG = add_inner(gates_TBG, flat, _squashed_first(weight_x), inner)
        gates_TBG = gates_TBG.view(time, examples, 4 * size)
        recurrent_GH = _squashed_first(weight_h)
        cells, hidden = (gates_TBG.new_zeros(time + 1, examples, size) for _ in range(2))
        tanh_cells = gates_TBG.new_empty(time, examples, size)
        # Views of all steps at once: making them step by step would take as long as computing with them.
        every_gates, squashed = gates_TBG.unbind(), gates_TBG[:, :, : 3 * size].unbind()
        enter, forget, leave, candidate = (part.unbind() for part in gates_TBG.chunk(4, dim=2))
        every_cell, every_hidden, every_tanh = cells.unbind(), hidden.unbind(), tanh_cells.unbind()
        for step in range(time):
            add_inner(every_gates[step], every_hidden[step], recurrent_GH, inner)
            squashed[step].sigmoid_()
            candidate[step].tanh_()
            cell = torch.mul(forget[step], every_cell[step], out=every_cell[step + 1])
            cell.addcmul_(enter[step], candidate[step])
            torch.tanh(cell, out=every_tanh[step])
            torch.mul(leave[step], every_tanh[step], out=every_hidden[step + 1])
        ctx.save_for_backward(
            flat.view(time, examples, -1), gates_TBG, cells, tanh_cells, hidden, weight_x, weight_h
        )
        ctx.layer = (layer, books)
        outputs, last = hidden[1:].transpose(0, 1), cells[-1].clone()
        ctx.mark_non_differentiable(last)
        return outputs, last

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The inputs' gradient; what the gates' gradient meets goes into the books."""
        x_TBI, gates_TBG, cells, tanh_cells, hidden, weight_x, weight_h = ctx.saved_tensors
        layer, books = ctx.layer
        inner = books.how.inner_for(gates_TBG)
        grad_hidden_TBH = upstream[0].transpose(0, 1)
        gradient_TBG = _gates_gradient(grad_hidden_TBH, gates_TBG, cells, tanh_cells, weight_h, inner)
        gradient_BTG = gradient_TBG.transpose(0, 1)
        bias_BG = gradient_TBG.float().sum(dim=0)  # of both maps, which are added up
        _record(layer.input_gates, books, gradient_BTG, x_TBI.transpose(0, 1), bias_BG)
        _record(layer.recurrent_gates, books, gradient_BTG, hidden[:-1].transpose(0, 1), bias_BG)
        grad_x = None
        if ctx.needs_input_grad[0]:
            flat = gradient_TBG.flatten(0, 1)
            grad_x = flat @ weight_x if inner is None else inner(flat, weight_x.T.contiguous())
            grad_x = grad_x.view(x_TBI.shape).transpose(0, 1)
        return (grad_x, *[None] * (len(ctx.needs_input_grad) - 1))


def _squashed_first(rows: Tensor) -> Tensor:
    """Gates from torch's order to input, forget, output, candidate: three sigmoids lie together."""
    enter, forget, candidate, leave = rows.chunk(4, dim=0)
    return torch.cat([enter, forget, leave, candidate])


def _gates_gradient(
    grad_hidden_TBH: Tensor,
    gates_TBG: Tensor,
    cells: Tensor,
    tanh_cells: Tensor,
    weight_GH: Tensor,
    inner: Inner | None,
) -> Tensor:
    """Gradient by the gates before they are squashed, [T, B, G] in torch's order.

    It takes the place of the gates themselves; cells are overwritten as well. Nobody needs them any more, and
    fresh memory would be the largest thing that a step has beyond an ordinary one.
    """
    time, examples, size = tanh_cells.shape
    enter, forget, leave, candidate = gates_TBG.chunk(4, dim=2)
    sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # gradient * output * (1 - output)
    tanh_backward = torch.ops.aten.tanh_backward.grad_input  # gradient * (1 - output^2)
    to_cell = torch.ops.aten.tanh_backward(leave, tanh_cells)
    # Of each gate, per unit of the cell's gradient; of the output gate, per unit of the hidden state's. What
    # is needed later is read before its place is taken.
    by_leave = sigmoid_backward(tanh_cells, leave, grad_input=tanh_cells)
    tanh_backward(enter, candidate, grad_input=leave)
    sigmoid_backward(candidate, enter, grad_input=enter)
    candidate.copy_(by_leave)
    forget_TBH = tanh_cells.copy_(forget)
    sigmoid_backward(cells[:-1], forget, grad_input=forget)
    gradient = gates_TBG  # each slope is multiplied in its place
    grad_hidden_TBH = cells[1:].copy_(grad_hidden_TBH)  # written to below
    from_cell = gates_TBG.new_zeros(examples, 1, size)
    parts = gradient.view(time, examples, 4, size)
    by_cell, by_hidden = parts[:, :, :3].unbind(), parts[:, :, 3:].unbind()
    every_gradient, to_cells = gradient.unbind(), to_cell.unsqueeze(2).unbind()
    forgets = forget_TBH.unsqueeze(2).unbind()
    every_hidden, flat_hidden = grad_hidden_TBH.unsqueeze(2).unbind(), grad_hidden_TBH.unbind()
    recurrent_HG = weight_GH.T.contiguous()
    for step in reversed(range(time)):
        if step + 1 < time:
            add_inner(flat_hidden[step], every_gradient[step + 1], recurrent_HG, inner)
            from_cell.mul_(forgets[step + 1])
        from_cell.addcmul_(every_hidden[step], to_cells[step])
        by_cell[step].mul_(from_cell)
        by_hidden[step].mul_(every_hidden[step])
    return gradient


def _record(
    gates: nn.Module, books: Books, gradient_BTG: Tensor, inputs_BTX: Tensor, bias_BG: Tensor
) -> None:
    """What one of the two maps, plain or with adapters that change its weight, has to write down."""
    base: Any = gates if isinstance(gates, nn.Linear) else gates.get_base_layer()  # type: ignore[operator]
    if base.weight.requires_grad:
        books.outer(base.weight, gradient_BTG, inputs_BTX)
    if base.bias.requires_grad:
        books.whole(base.bias, bias_BG)
    if isinstance(gates, nn.Linear):
        return
    lora: Any = gates
    for adapter in lora.active_adapters:
        if adapter in lora.lora_A and not lora.disable_adapters:
            a_RX, b_GR = lora.lora_A[adapter].weight, lora.lora_B[adapter].weight
            scaling = lora.scaling[adapter]
            books.outer(b_GR, gradient_BTG, (inputs_BTX @ a_RX.T).mul_(scaling))
            books.outer(a_RX, (gradient_BTG @ b_GR).mul_(scaling), inputs_BTX)
