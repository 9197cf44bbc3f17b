"""dpmerge: a model for any privacy level, from the differentially private models you already have."""

from dpmerge.errors import DeltaOutOfReach, DpmergeError, InvalidInput, NoGuarantee

__all__ = ["DeltaOutOfReach", "DpmergeError", "InvalidInput", "NoGuarantee", "__version__"]

__version__ = "0.1.0"
