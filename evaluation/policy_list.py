"""``--policies``: what a run measures; each rule is built once, so that a wrong one is found early."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import BenchError

__all__ = ["REFERENCES", "host_options", "measured", "own_rules", "rule_of"]

REFERENCES = ("plain", "host")


def measured(text: str, baseline: str) -> list[str]:
    """What a run measures: ``plain``, the baseline should it be missing, then the list; doubles dropped.

    Args:
        text: rules and references separated by commas; a piece ``name=value`` belongs to the rule before it.
        baseline: one rule or reference.

    Raises:
        BenchError: an empty list.
        PolicyError: an unknown rule, or arguments it does not take.
    """
    from svip_adapters.policies import parse_policy, split_policies

    policies = split_policies(text)
    if not policies:
        raise BenchError(
            f"expected at least one policy, found {text!r}; name some, e.g. host,svip:threshold=0.3."
        )
    if baseline not in policies:
        policies.insert(0, baseline)
    for policy in policies:
        rule = rule_of(policy)
        if rule not in REFERENCES:
            parse_policy(rule)
    return list(dict.fromkeys(["plain", *policies]))


def rule_of(policy: str) -> str:
    """A policy without the host's options: what stands before the @."""
    return policy.partition("@")[0]


def host_options(policy: str, known: Mapping[str, Callable[[str], Any]]) -> tuple[str, dict[str, Any]]:
    """``rule@name=value,name=value`` as the rule's name and the host's options.

    Args:
        known: what the host takes: {name: how to read its value}.

    Raises:
        BenchError: an option the host does not take, or a value that cannot be read.
    """
    rule, _, text = policy.partition("@")
    options = {}
    for piece in filter(None, text.split(",")):
        name, _, value = piece.partition("=")
        try:
            options[name] = known[name](value)
        except (KeyError, ValueError) as error:
            takes = ", ".join(f"{key} ({read.__name__})" for key, read in known.items()) or "none"
            raise BenchError(
                f"expected options that the host takes after @, found {piece!r} in {policy!r}; "
                f"it takes: {takes}."
            ) from error
    return rule, options


def own_rules(policies: Iterable[str]) -> dict[str, str]:
    """{policy: digest of its source} of the rules that are a user's own: an edited one is another rule."""
    from svip_adapters.policies import POLICIES, parse_policy
    from svip_adapters.policies.spec import COMBINATIONS

    found: dict[str, str] = {}
    for policy in policies:
        text = rule_of(policy)
        name = text.partition(":")[0]
        if ":" not in text or (name in POLICIES and name not in COMBINATIONS):
            continue
        rule = parse_policy(text)
        for part in getattr(rule, "rules", (rule,)):
            if not type(part).__module__.startswith("svip_adapters."):
                source = inspect.getsource(inspect.getmodule(type(part)) or type(part))
                found[policy] = found.get(policy, "") + hashlib.sha256(source.encode()).hexdigest()[:12]
    return found
