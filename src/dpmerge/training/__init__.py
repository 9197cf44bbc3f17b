"""Training: record what an Opacus run really did, so that its model can be merged later (extra `torch`)."""

from dpmerge.errors import RecordingError
from dpmerge.extras import needs_extra

with needs_extra("torch", by="dpmerge.training"):
    import opacus
    import safetensors
    import torch

from dpmerge.terms.run_record import Ancestry
from dpmerge.training.feature_bounds import BoundFeatures, bound_features
from dpmerge.training.per_record_losses import per_record_loss
from dpmerge.training.recorder import Recorder
from dpmerge.training.recording import record, start
from dpmerge.training.user_warnings import (
    ChangedWeightsWarning,
    InsecureNoiseWarning,
    LostStepsWarning,
    OtherAccountingWarning,
    UnknownLossesWarning,
)

del opacus, safetensors, torch

__all__ = [
    "Ancestry",
    "BoundFeatures",
    "ChangedWeightsWarning",
    "InsecureNoiseWarning",
    "LostStepsWarning",
    "OtherAccountingWarning",
    "Recorder",
    "RecordingError",
    "UnknownLossesWarning",
    "bound_features",
    "per_record_loss",
    "record",
    "start",
]
