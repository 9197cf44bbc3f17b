"""The run that a callback of a training framework records: started once, closed once.

Guarantees: `start` gets every option that the callback was given, whatever options it has; what the framework trains
with is asked of the framework. Closing is harmless before the start, twice, and after an error.
Refuses: a second run by one callback.
"""

from __future__ import annotations

from typing import Any

from opacus.optimizers import DPOptimizer

from dpmerge.errors import RecordingError
from dpmerge.training.physical_batches import PhysicalBatches
from dpmerge.training.recorder import Recorder
from dpmerge.training.recording import start


class CallbackRun:
    """What callbacks share: the options of `start`, and the recorder while there is one."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._recorder: Recorder | None = None

    @property
    def recorder(self) -> Recorder:
        """The run so far: `epsilon`, `checkpoint`, `metric`, `manifest`."""
        if self._recorder is None:
            raise RecordingError("recorder: training has not begun, so nothing is recorded yet")
        return self._recorder

    @property
    def resumes(self) -> bool:
        """Whether the run is said to go on where another process left it."""
        return bool(self._options.get("resume"))

    def start(self, *, model: Any, optimizer: Any, data_loader: Any) -> None:
        """Training begins, with these, unless the callback was given others."""
        if self._recorder is not None:
            raise RecordingError("recorder: it has recorded a run already; make one for each run, with its own folder")
        if isinstance(data_loader, PhysicalBatches):
            data_loader = data_loader.data_loader
        found = {"model": model, "optimizer": optimizer, "data_loader": data_loader}
        self._recorder = start(**(found | self._options))

    def close(self, error: BaseException | None = None) -> None:
        """Training has ended; see `Recorder.close`."""
        if self._recorder is not None:
            self._recorder.close(error)


def private_optimizer(optimizer: Any, cure: str) -> DPOptimizer:
    """The optimizer that a framework steps, if Opacus made it."""
    if not isinstance(optimizer, DPOptimizer):
        raise RecordingError(f"optimizer: a {type(optimizer).__name__}, which adds no noise; {cure}")
    return optimizer
