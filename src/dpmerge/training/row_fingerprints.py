"""Which records enter the model: fingerprints of the rows a loader hands out, and of the rows the model is given.

Guarantees: two rows of equal values have equal fingerprints, on any device, before and after a cast to single precision
(or to the half precision of the model's own parameters) and whatever shape a row is given; unequal rows of equal length
have equal ones with a chance below 2⁻³², whoever chose them, because the weights of the sum are secret. A batch is used
where each tensor that enters the model is a tensor of that batch, row by row.
Keeps nothing of the data but these numbers, in memory, for as long as a batch waits to be used.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpmerge.training.noise_generators import from_os_entropy
from dpmerge.training.spot_checks import SpotChecks

Fingerprints = frozenset[bytes]
"""One entry for each tensor: the fingerprints of its rows, in order."""

_HALF = np.uint64(32)
_DEEPEST = 5
"""How far down in lists, dictionaries and objects tensors are looked for."""


def tensors_in(content: Any, depth: int = 0) -> Iterator[Tensor]:
    """All tensors within a batch, the arguments of a model or its outputs, in order."""
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, np.ndarray) and content.dtype.kind in "biuf":
        yield torch.from_numpy(np.array(content, dtype=np.float32))
    elif depth < _DEEPEST:
        parts: Any = ()
        if isinstance(content, Mapping):
            parts = content.values()
        elif isinstance(content, list | tuple):
            parts = content
        elif hasattr(content, "__dict__") and not isinstance(content, type | nn.Module):
            parts = vars(content).values()
        for part in parts:
            yield from tensors_in(part, depth + 1)


class RowFingerprints:
    """Fingerprints under weights that nobody knows."""

    def __init__(self, rounded_to: Collection[torch.dtype] = ()) -> None:
        self._rounded_to = rounded_to  # where a model takes half precision, batches are cast to it
        self._generator = from_os_entropy(torch.device("cpu"))
        self._weights: dict[tuple[int, torch.device], Tensor] = {}
        self._handed: list[tuple[Any, int, bytes]] = []
        self._scratch = np.empty(0, dtype=np.uint64)  # as large as the largest batch: new memory costs more than sums
        self._spot_checks = SpotChecks()

    def handed(self, batch: Any) -> Fingerprints:
        """The fingerprints of all tensors of a batch that a loader hands out."""
        found, self._handed = set(), []
        with torch.no_grad():
            for tensor in tensors_in(batch):
                found.add(of_rows := self._rows(tensor.detach()))
                if tensor.is_floating_point():
                    found.update(self._rows(tensor.detach().to(dtype)) for dtype in self._rounded_to)
                self._handed.append((weakref.ref(tensor), tensor._version, of_rows))
        return frozenset(found)

    def entered(self, content: Any) -> Fingerprints:
        """The same, of what enters a model; now and then without a look at values where it is what was handed out."""
        look = self._spot_checks.due()
        with torch.no_grad():
            return frozenset(
                (None if look else self._known(tensor)) or self._rows(tensor.detach()) for tensor in tensors_in(content)
            )

    def _known(self, tensor: Tensor) -> bytes | None:
        """Of the very tensor that was handed out last, and that torch knows of no change of."""
        return next((p for ref, version, p in self._handed if ref() is tensor and tensor._version == version), None)

    def _rows(self, tensor: Tensor) -> bytes:
        if tensor.is_nested:
            return secrets.token_bytes(8)  # not looked into, so never recognised
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.dim() < 2:
            tensor = tensor.reshape(-1, 1)
        rows = tensor.flatten(1).to(torch.float32)
        rows = nn.functional.pad(rows, (0, 1)) if rows.shape[1] % 2 else rows.contiguous()
        # Two numbers in 64 bits, the upper one in the lower half too: the difference of round numbers, whose last bits
        # are 0, then has at most 31 of them, and shows in the product.
        weights = self._weights_of(rows)
        if rows.device.type == "cpu":
            bits = rows.numpy().view(np.uint64)
            sums: Any = np.einsum("ij,j->i", self._folded(bits), weights.numpy().view(np.uint64))
        else:
            whole = rows.view(torch.int64)
            sums = ((whole ^ ((whole >> 32) & 0xFFFFFFFF)) * weights).sum(1).cpu().numpy()
        return bytes(sums.tobytes())

    def _folded(self, bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        if self._scratch.size < bits.size:
            self._scratch = np.empty(bits.size, dtype=np.uint64)
        folded = self._scratch[: bits.size].reshape(bits.shape)
        np.right_shift(bits, _HALF, out=folded)
        np.bitwise_xor(folded, bits, out=folded)
        return folded

    def _weights_of(self, rows: Tensor) -> Tensor:
        key = rows.shape[1] // 2, rows.device
        if key not in self._weights:
            known = self._weights.get((key[0], torch.device("cpu")))
            if known is None:
                known = torch.randint(-(2**63), 2**63 - 1, (key[0],), generator=self._generator)
                self._weights[key[0], torch.device("cpu")] = known
            self._weights[key] = known.to(rows.device)
        return self._weights[key]
