"""The "length_policy" entry of vLLM's additional_config: what it may hold, and the policy it means."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from svip_adapters.errors import PolicyError
from svip_adapters.policies.spec import find_policy, parse_policy
from svip_adapters.policy import LengthPolicy

from ._bridge import choose_policy

__all__ = ["KEY", "is_strict", "policy_entry", "read_policy"]

KEY = "length_policy"


def policy_entry(vllm_config: Any) -> Any:
    """The entry, or None where there is none: then the plugin does nothing."""
    additional = getattr(vllm_config, "additional_config", None)
    return additional.get(KEY) if isinstance(additional, Mapping) else None


def is_strict(entry: Any) -> bool:
    """Whether a vLLM that this adapter was not tested on is an error, instead of a warning."""
    strict = entry.get("strict", False) if isinstance(entry, Mapping) else False
    if not isinstance(strict, bool):
        raise PolicyError(
            f"expected {KEY}'s strict to be true or false, found {strict!r}. Write true, unquoted."
        )
    return strict


def read_policy(entry: Any) -> LengthPolicy:
    """The policy that the entry means.

    Args:
        entry: a rule as on ``svip-bench``'s command line ("svip:threshold=0.3"), or a dictionary: ``name``
            (such a rule, or a name or ``module:Class`` whose arguments follow as further keys), ``strict``.
            ``threshold`` without a name is SVIP's. There is no default: in a batch, ``RateOptimal`` measures
            the time of rounds that it shares with other requests.

    Raises:
        PolicyError: anything else, an unknown name or argument, values that a rule refuses.
    """
    if isinstance(entry, str):
        return parse_policy(entry)
    if not isinstance(entry, Mapping):
        raise PolicyError(
            f'expected {KEY} to be a rule or a dictionary, found {entry!r}. Write e.g. {{"{KEY}": '
            '{"name": "svip", "threshold": 0.3}}.'
        )
    arguments = {key: value for key, value in entry.items() if key not in ("name", "strict")}
    name = entry.get("name")
    if name is None and set(arguments) == {"threshold"}:
        return choose_policy(arguments["threshold"], None)
    if not isinstance(name, str):
        raise PolicyError(
            f'expected {KEY} to name its rule, found {dict(entry)!r}. Add "name", such as "svip".'
        )
    if not arguments:
        return parse_policy(name)
    if "=" in name:
        raise PolicyError(
            f"expected arguments in the name, or as further keys of {KEY}, found both: {dict(entry)!r}. "
            "Keep one."
        )
    return _build(name, arguments)


def _build(name: str, arguments: dict[str, Any]) -> LengthPolicy:
    cls = find_policy(name)
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise PolicyError(
            f"expected the arguments of {cls.__name__} ({', '.join(inspect.signature(cls).parameters)}), "
            f"found {arguments!r}: {error}. Write them as further keys of {KEY}."
        ) from None
    return cls(**{key: _integer_keys(value) for key, value in arguments.items()})


def _integer_keys(value: Any) -> Any:
    """JSON knows no whole numbers as keys: {"1": 5} is {1: 5}."""
    if isinstance(value, Mapping):
        decimal = {key for key in value if isinstance(key, str) and key.isdecimal()}
        return {int(key) if key in decimal else key: inner for key, inner in value.items()}
    return value
