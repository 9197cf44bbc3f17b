"""Hooks and wrapped methods by which the recorder observes a loop, and that are gone when it ends.

Guarantees: a hook acts on the module it was made for, and on no copy of it; a method that was wrapped is afterwards
what it was before, whether the object had one of its own or its class'.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

OBSERVES_ONLY = "_dpmerge_observes_only"
"""The mark of hooks of the recorder's own, which change no gradient."""


def hook_of(module: nn.Module, hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, for this module and no copy of it: who copies a model (EMA) copies its hooks, but not the recorder."""

    def called(which: nn.Module, *args: Any) -> Any:
        return hook(which, *args) if which is module else None

    return called


def wrap_method(attached: ExitStack, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put a wrapper before a method of one object, until the stack is closed."""
    own = vars(owner).get(name)
    vars(owner)[name] = wrapper
    if own is None:
        attached.callback(vars(owner).pop, name)
    else:
        attached.callback(vars(owner).__setitem__, name, own)
