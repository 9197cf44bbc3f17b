"""The privacy mathematics of merging: profiles, mechanisms, random selection, linear combination.

Pure functions of numbers: no files, no clocks, no tensors.
"""

from dpmerge.privacy.combination import (
    THEOREMS,
    Bound,
    LinearCombination,
    hidden_state,
    joint_release,
    last_step,
    merged_trajectory,
    tightest,
)
from dpmerge.privacy.composition import advanced_composition, basic_composition, compose, optimal_composition
from dpmerge.privacy.discrete import DiscreteProfile
from dpmerge.privacy.exposure import Adjacency, Checkpoint, Exposure, Mechanism
from dpmerge.privacy.gaussian import GaussianProfile, gaussian_delta, gaussian_epsilon, largest_mu
from dpmerge.privacy.limits import no_free_lunch
from dpmerge.privacy.loss_distribution import LossDistributionProfile
from dpmerge.privacy.mechanisms import Clipping, DpSgd, Optimizer, Sampling, StepBlock
from dpmerge.privacy.premises import Premise
from dpmerge.privacy.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.privacy.releases import (
    AccountantHistory,
    ApproximateDp,
    GaussianDp,
    GaussianRelease,
    NonPrivate,
    RenyiMechanism,
    Unaccounted,
)
from dpmerge.privacy.renyi import DEFAULT_ORDERS, RenyiProfile
from dpmerge.privacy.selection import (
    SelectionProfile,
    selection_epsilons,
    selection_feasible,
    selection_renyi_epsilons,
)
from dpmerge.privacy.smoothness import DeclaredLipschitz, Smoothness
from dpmerge.privacy.weightings import (
    hidden_state_mus,
    joint_release_mus,
    last_step_mus,
    linear_mus,
    merged_trajectory_mus,
)

__all__ = [
    "DEFAULT_ORDERS",
    "THEOREMS",
    "AccountantHistory",
    "Adjacency",
    "ApproximateDp",
    "Bound",
    "Checkpoint",
    "Clipping",
    "DeclaredLipschitz",
    "DiscreteProfile",
    "DpSgd",
    "Exposure",
    "GaussianDp",
    "GaussianProfile",
    "GaussianRelease",
    "LinearCombination",
    "LossDistributionProfile",
    "Mechanism",
    "NonPrivate",
    "NonPrivateProfile",
    "Optimizer",
    "Premise",
    "PrivacyProfile",
    "RenyiMechanism",
    "RenyiProfile",
    "Sampling",
    "SelectionProfile",
    "Smoothness",
    "StepBlock",
    "Unaccounted",
    "advanced_composition",
    "basic_composition",
    "compose",
    "gaussian_delta",
    "gaussian_epsilon",
    "hidden_state",
    "hidden_state_mus",
    "joint_release",
    "joint_release_mus",
    "largest_mu",
    "last_step",
    "last_step_mus",
    "linear_mus",
    "merged_trajectory",
    "merged_trajectory_mus",
    "no_free_lunch",
    "optimal_composition",
    "selection_epsilons",
    "selection_feasible",
    "selection_renyi_epsilons",
    "tightest",
]
