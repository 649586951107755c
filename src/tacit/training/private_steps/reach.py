"""What a private step may reach: parameters whose gradients it clips and noises, and no others.

Autograd hands a private loss's gradient to every leaf that requires one, and an optimiser steps whatever has
one. So while a private step runs, nothing else that the model, the objective or an optimiser holds may
require a gradient, and the optimiser may hold nothing else that has one. What only public steps train is
frozen outside of ``public()``: then no private gradient of it ever exists.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from tacit.errors import InputError, ModelError


class Reach:
    """The parameters that private steps clip and noise, held against all that could be reached.

    Args:
        parameters: those of the private steps.
        modules: the model, and what else the loss is computed with.
        optimiser: of private steps.
        public_optimiser: of public ones.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        modules: Sequence[nn.Module],
        optimiser: torch.optim.Optimizer,
        public_optimiser: torch.optim.Optimizer,
    ) -> None:
        self._own = set(parameters)
        self._modules = modules
        self._optimiser = optimiser
        self._public_optimiser = public_optimiser

    def refuse_others(self) -> None:
        """A `ModelError` where a private step could move what it neither clips nor noises."""
        for name, parameter in self._named():
            if parameter.requires_grad and parameter not in self._own:
                raise ModelError(
                    f"{name} requires a gradient and is none of those that the private steps were built for, "
                    "so that it would be neither clipped nor noised: call requires_grad_(False) on it before "
                    "private steps, or build the PrivateTrainer with a model that has it, trainable."
                )
        for parameter in held_by(self._optimiser):
            if parameter.grad is not None and parameter not in self._own:
                raise ModelError(
                    f"{self._name(parameter)} is in the optimiser of private steps, is not trained by them, "
                    "and has a gradient that the optimiser would apply as it is: set its grad to None, or "
                    "leave it out of the optimiser."
                )

    def forget_others(self) -> None:
        """Drop the gradients that a refused step left where none may be."""
        for _, parameter in self._named():
            if parameter not in self._own:
                parameter.grad = None

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        for module in self._modules:
            for name, parameter in module.named_parameters():
                yield f"'{name}'", parameter
        for optimiser in (self._optimiser, self._public_optimiser):
            for parameter in held_by(optimiser):
                yield f"The optimiser's {_shape(parameter)}", parameter

    def _name(self, wanted: nn.Parameter) -> str:
        return next(name for name, parameter in self._named() if parameter is wanted)


def modules_of(objective: object) -> list[nn.Module]:
    """What a loss is computed with: the objective itself, what its attributes are, and whose methods."""
    held = [objective, *getattr(objective, "__dict__", {}).values()]
    seen = (getattr(one, "__self__", one) for one in held)
    return [one for one in seen if isinstance(one, nn.Module)]


def held_by(optimiser: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    """Every parameter that an optimiser's step may change."""
    return (parameter for group in optimiser.param_groups for parameter in group["params"])


def refuse_unusable(optimiser: torch.optim.Optimizer) -> None:
    """An optimiser that a step cannot call is refused before anything is counted."""
    kind = type(optimiser).__name__
    closure = inspect.signature(optimiser.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            f"{kind} asks for a closure, to compute the loss as often as it likes; a step here has one "
            "gradient and one noise. Give an optimiser without, e.g. torch.optim.AdamW."
        )
    if isinstance(optimiser, torch.optim.SparseAdam):
        raise InputError(
            f"{kind} takes sparse gradients only, and gradients are dense here; give e.g. torch.optim.AdamW."
        )


def _shape(parameter: nn.Parameter) -> str:
    return f"parameter of shape {tuple(parameter.shape)}"
