"""Training: record what an Opacus run really did, so that its model can be merged later (extra `torch`)."""

from dpmerge.portfolio.manifest import Ancestry
from dpmerge.training.features import BoundFeatures, bound_features
from dpmerge.training.noise import InsecureNoiseWarning
from dpmerge.training.recorder import Recorder, record

__all__ = ["Ancestry", "BoundFeatures", "InsecureNoiseWarning", "Recorder", "bound_features", "record"]
