"""The privacy mathematics of merging: profiles, mechanisms, random selection, linear combination.

Pure functions of numbers: no files, no clocks, no tensors.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmerge.accounting.combination import (
        THEOREMS as THEOREMS,
    )
    from dpmerge.accounting.combination import (
        Bound as Bound,
    )
    from dpmerge.accounting.combination import (
        LinearCombination as LinearCombination,
    )
    from dpmerge.accounting.combination import (
        hidden_state as hidden_state,
    )
    from dpmerge.accounting.combination import (
        joint_release as joint_release,
    )
    from dpmerge.accounting.combination import (
        last_step as last_step,
    )
    from dpmerge.accounting.combination import (
        merged_trajectory as merged_trajectory,
    )
    from dpmerge.accounting.combination import (
        tightest as tightest,
    )
    from dpmerge.accounting.comparison import (
        Comparison as Comparison,
    )
    from dpmerge.accounting.comparison import (
        compare as compare,
    )
    from dpmerge.accounting.composition import (
        advanced_composition as advanced_composition,
    )
    from dpmerge.accounting.composition import (
        basic_composition as basic_composition,
    )
    from dpmerge.accounting.composition import (
        compose as compose,
    )
    from dpmerge.accounting.composition import (
        optimal_composition as optimal_composition,
    )
    from dpmerge.accounting.discrete import (
        DiscreteProfile as DiscreteProfile,
    )
    from dpmerge.accounting.exposure import (
        Adjacency as Adjacency,
    )
    from dpmerge.accounting.exposure import (
        Checkpoint as Checkpoint,
    )
    from dpmerge.accounting.exposure import (
        Exposure as Exposure,
    )
    from dpmerge.accounting.exposure import (
        Mechanism as Mechanism,
    )
    from dpmerge.accounting.gaussian import (
        GaussianProfile as GaussianProfile,
    )
    from dpmerge.accounting.gaussian import (
        gaussian_delta as gaussian_delta,
    )
    from dpmerge.accounting.gaussian import (
        gaussian_epsilon as gaussian_epsilon,
    )
    from dpmerge.accounting.gaussian import (
        largest_mu as largest_mu,
    )
    from dpmerge.accounting.implied_replace_one import (
        implied_replace_one_epsilon as implied_replace_one_epsilon,
    )
    from dpmerge.accounting.limits import (
        no_free_lunch as no_free_lunch,
    )
    from dpmerge.accounting.linear_combination_mu import (
        hidden_state_mus as hidden_state_mus,
    )
    from dpmerge.accounting.linear_combination_mu import (
        joint_release_mus as joint_release_mus,
    )
    from dpmerge.accounting.linear_combination_mu import (
        last_step_mus as last_step_mus,
    )
    from dpmerge.accounting.linear_combination_mu import (
        linear_mus as linear_mus,
    )
    from dpmerge.accounting.linear_combination_mu import (
        merged_trajectory_mus as merged_trajectory_mus,
    )
    from dpmerge.accounting.loss_distribution import (
        LossDistributionProfile as LossDistributionProfile,
    )
    from dpmerge.accounting.mechanisms import (
        DpSgd as DpSgd,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        AccountantHistory as AccountantHistory,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        ApproximateDp as ApproximateDp,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        GaussianDp as GaussianDp,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        GaussianRelease as GaussianRelease,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        NonPrivate as NonPrivate,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        RenyiMechanism as RenyiMechanism,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        Unaccounted as Unaccounted,
    )
    from dpmerge.accounting.one_shot_mechanisms import (
        WeightAverage as WeightAverage,
    )
    from dpmerge.accounting.premises import (
        Premise as Premise,
    )
    from dpmerge.accounting.profile import (
        NonPrivateProfile as NonPrivateProfile,
    )
    from dpmerge.accounting.profile import (
        PrivacyProfile as PrivacyProfile,
    )
    from dpmerge.accounting.random_selection import (
        SelectionProfile as SelectionProfile,
    )
    from dpmerge.accounting.random_selection import (
        selection_epsilons as selection_epsilons,
    )
    from dpmerge.accounting.random_selection import (
        selection_feasible as selection_feasible,
    )
    from dpmerge.accounting.random_selection import (
        selection_renyi_epsilons as selection_renyi_epsilons,
    )
    from dpmerge.accounting.renyi import (
        DEFAULT_ORDERS as DEFAULT_ORDERS,
    )
    from dpmerge.accounting.renyi import (
        RenyiProfile as RenyiProfile,
    )
    from dpmerge.accounting.smoothness import (
        DeclaredLipschitz as DeclaredLipschitz,
    )
    from dpmerge.accounting.smoothness import (
        Smoothness as Smoothness,
    )
    from dpmerge.accounting.training_settings import (
        Clipping as Clipping,
    )
    from dpmerge.accounting.training_settings import (
        Optimizer as Optimizer,
    )
    from dpmerge.accounting.training_settings import (
        Sampling as Sampling,
    )
    from dpmerge.accounting.training_settings import (
        StepBlock as StepBlock,
    )

# Which module defines which public names; a module is loaded when one of its names is first asked for.
_MODULES = {
    "combination": (
        "Bound",
        "LinearCombination",
        "THEOREMS",
        "hidden_state",
        "joint_release",
        "last_step",
        "merged_trajectory",
        "tightest",
    ),
    "comparison": ("Comparison", "compare"),
    "composition": ("advanced_composition", "basic_composition", "compose", "optimal_composition"),
    "discrete": ("DiscreteProfile",),
    "exposure": ("Adjacency", "Checkpoint", "Exposure", "Mechanism"),
    "gaussian": ("GaussianProfile", "gaussian_delta", "gaussian_epsilon", "largest_mu"),
    "implied_replace_one": ("implied_replace_one_epsilon",),
    "limits": ("no_free_lunch",),
    "linear_combination_mu": (
        "hidden_state_mus",
        "joint_release_mus",
        "last_step_mus",
        "linear_mus",
        "merged_trajectory_mus",
    ),
    "loss_distribution": ("LossDistributionProfile",),
    "mechanisms": ("DpSgd",),
    "one_shot_mechanisms": (
        "AccountantHistory",
        "ApproximateDp",
        "GaussianDp",
        "GaussianRelease",
        "NonPrivate",
        "RenyiMechanism",
        "Unaccounted",
        "WeightAverage",
    ),
    "premises": ("Premise",),
    "profile": ("NonPrivateProfile", "PrivacyProfile"),
    "random_selection": ("SelectionProfile", "selection_epsilons", "selection_feasible", "selection_renyi_epsilons"),
    "renyi": ("DEFAULT_ORDERS", "RenyiProfile"),
    "smoothness": ("DeclaredLipschitz", "Smoothness"),
    "training_settings": ("Clipping", "Optimizer", "Sampling", "StepBlock"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_HOMES]  # noqa: PLE0604


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"dpmerge.accounting.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
