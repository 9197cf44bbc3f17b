"""The update a step must have made: the same optimizer on a copy of the weights, given the noised gradients alone.

Guarantees: the weights of a recorded run are what its optimizer makes of noised gradients, step by step, and of nothing
else (theory 2.2: then every iterate is covered by the cost of its steps). Whoever writes to the weights or to the
optimizer's state in another way is noticed at the next step or checkpoint, by whatever road it happened: hooks,
`.data`, another optimizer, a class of one's own that reads the sum without its noise.
Refuses: updates and weights that differ. Costs a second copy of the trained weights and of the optimizer's state.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from dpmerge.errors import RecordingError
from dpmerge.training.half_precision import HALF
from dpmerge.training.noised_gradients import same
from dpmerge.training.optimizer_state import state_digest
from dpmerge.training.sharded_models import SHARDED, local

_ROUNDING = 8
"""Units in the last place: another order of the same operations may differ by so much."""


class ReferenceOptimizer:
    """What the weights must be, computed beside the run."""

    def __init__(self, optimizer: DPOptimizer) -> None:
        self._optimizer = optimizer
        self._inner = optimizer.original_optimizer
        self._parameters = list(optimizer.params)
        self._weights = [_copied(parameter) for parameter in self._parameters]
        self._reference = _copy_of(self._inner, self._parameters, self._weights)
        # The class' own step, without the hooks that torch puts around it and those of schedulers on the instance.
        step: Callable[[Any], object] = type(self._inner).step
        self._step = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]

    @property
    def weights(self) -> list[Tensor]:
        """What the private optimizer left, whatever the model has now."""
        return [weight.detach() for weight in self._weights]

    def state_digest(self, names: Sequence[str]) -> str | None:
        """Of the optimizer's state as noised gradients made it, the weights being called by these names.

        None of shards, of which no process has the whole state; such a run is not resumed.
        """
        if type(self._optimizer) in SHARDED:
            return None
        known = {id(weight): name for weight, name in zip(self._weights, names, strict=True)}
        return state_digest(self._reference, known)

    @property
    def still(self) -> bool:
        """Whether the model has the weights that the private optimizer left."""
        return all(same(local(p.detach()), w) for p, w in zip(self._parameters, self._weights, strict=True))

    def require_still(self) -> None:
        """Refuse weights that are not those the private optimizer left (swapped out and back again is fine)."""
        if not self.still:
            raise RecordingError(
                "model: trained weights were changed by something else than the private optimizer; nobody can say what "
                "that cost: let it alone move them, and put back what was swapped out for an evaluation"
            )

    def step(self, gradients: Sequence[Tensor]) -> None:
        """The optimizer has moved the weights; move the copy by these gradients, and compare."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        try:
            self._take_settings()
            self._step(self._reference)
        except Exception as error:
            raise RecordingError(
                f"optimizer: {type(self._inner).__name__} could not be repeated with the noised gradients alone "
                f"({type(error).__name__}: {error}); use an optimizer that moves the weights by p.grad"
            ) from error
        finally:
            for weight in self._weights:
                weight.grad = None
        for parameter, weight in zip(self._parameters, self._weights, strict=True):
            found, expected = local(parameter.detach()), weight.detach()
            if same(found, expected):
                continue
            if not _agree(found, expected):
                raise RecordingError(
                    f"optimizer: the weights did not move by what {type(self._inner).__name__} makes of the noised "
                    "gradients; nothing else may be in an update: use the optimizer as its class defines it"
                )
            expected.copy_(found)

    def _take_settings(self) -> None:
        """Schedulers change them from step to step; which parameters are in which group must not change."""
        known = {id(parameter): weight for parameter, weight in zip(self._parameters, self._weights, strict=True)}
        for group, reference in zip(self._inner.param_groups, self._reference.param_groups, strict=True):
            members = [known.get(id(parameter), parameter) for parameter in group["params"]]
            if [id(each) for each in members] != [id(each) for each in reference["params"]]:
                raise ValueError("its groups of parameters have changed")
            reference.update({name: value for name, value in group.items() if name != "params"})


def _copied(parameter: Tensor) -> Tensor:
    return local(parameter.detach()).clone().requires_grad_(True)


def _copy_of(inner: Any, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> Any:
    """The same optimizer on other weights; hooks, which torch keeps apart from an optimizer's state, stay behind."""
    in_its_place: dict[int, Any] = {id(p): p for group in inner.param_groups for p in group["params"]}
    in_its_place |= {id(parameter): weight for parameter, weight in zip(parameters, weights, strict=True)}
    try:
        made = copy.deepcopy(inner, in_its_place)
    except Exception as error:
        raise RecordingError(
            f"optimizer: {type(inner).__name__} cannot be copied ({error}), so its updates cannot be checked; use one "
            "of torch.optim"
        ) from error
    # torch copies settings and state alone; what a class of one's own keeps beside them is shared.
    for name, value in vars(inner).items():
        if name != "step":
            vars(made).setdefault(name, value)
    return made


def _agree(found: Tensor, expected: Tensor) -> bool:
    """The same, but for rounding; in half precision that would leave room for something else."""
    if found.dtype in HALF:
        return False
    error = float((found - expected).norm())
    return math.isfinite(error) and error <= _ROUNDING * torch.finfo(found.dtype).eps * float(expected.norm())
