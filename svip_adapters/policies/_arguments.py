"""What the rules share: checks of their arguments, and the answer of a rule that looks at no logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from svip_adapters.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor

    from svip_adapters.policy import DraftStep

__all__ = ["never", "require_flag", "require_integer", "require_number"]


def require_number(
    rule: str, name: str, value: object, *, positive: bool = False, high: float = math.inf
) -> None:
    """Raise PolicyError unless ``value`` is a finite number in [0, high], or in (0, high] if ``positive``."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        inside = value > 0 if positive else value >= 0
        if inside and value <= high:
            return
    bottom = "above 0" if positive else "of at least 0"
    top = "" if high == math.inf else f" and at most {high:g}"
    raise PolicyError(
        f"{rule} expects {name} to be a finite number {bottom}{top}, found {value!r}. "
        "Pass a number in that range; for a rule that never stops early use Fixed(n)."
    )


def require_integer(rule: str, name: str, value: object, *, low: int, high: float = math.inf) -> None:
    """Raise PolicyError unless ``value`` is an int in [low, high]."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return
    top = "" if high == math.inf else f" and at most {high:g}"
    raise PolicyError(
        f"{rule} expects {name} to be a whole number of at least {low}{top}, found {value!r}. "
        "Pass an int in that range."
    )


def require_flag(rule: str, name: str, value: object) -> None:
    """Raise PolicyError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise PolicyError(f"{rule} expects {name} to be True or False, found {value!r}. Pass one of the two.")


def never(step: DraftStep) -> Tensor:
    """(N,) False: the length was settled by ``plan``."""
    import torch

    return torch.zeros(step.count, dtype=torch.bool, device=step.device)
