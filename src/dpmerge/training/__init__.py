"""Training: record what an Opacus run really did, so that its model can be merged later (extra `torch`)."""

try:
    import opacus
    import safetensors
    import torch
except ImportError as missing:
    raise ImportError(f"dpmerge.training needs {missing.name}: pip install 'dpmerge[torch]'") from missing

from dpmerge.errors import CannotRecord
from dpmerge.portfolio.statement import Ancestry
from dpmerge.training.features import BoundFeatures, bound_features
from dpmerge.training.language_models import per_record_loss
from dpmerge.training.noise import InsecureNoiseWarning
from dpmerge.training.recorder import Recorder
from dpmerge.training.recording import record

del opacus, safetensors, torch

__all__ = [
    "Ancestry",
    "BoundFeatures",
    "CannotRecord",
    "InsecureNoiseWarning",
    "Recorder",
    "bound_features",
    "per_record_loss",
    "record",
]
