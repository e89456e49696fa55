"""Rules by name, as written on a command line: ``name:argument=value,argument=value``.

===============================================  ======================================================
``svip``, ``svip:threshold=0.3,scale=1.0``       a built-in rule, its arguments by name
``fixed:5``                                      or by position
``table:1=5,8=3,32=0,by=batch_size``             whole-number names are gathered into one mapping
``any:svip+fixed:5``, ``all:..``, ``bandit:..``  rules joined with +, one level deep
``my_rules:Mine``, ``my_rules:Mine:level=2``     a class of your own in an importable module
===============================================  ======================================================
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
from collections.abc import Iterable

from svip_adapters.errors import PolicyError
from svip_adapters.policies.adaedl import AdaEDL
from svip_adapters.policies.bandit import Bandit
from svip_adapters.policies.combine import AllOf, AnyOf
from svip_adapters.policies.confidence import Confidence
from svip_adapters.policies.cumulative import Cumulative
from svip_adapters.policies.fitted_svip import FittedSVIP
from svip_adapters.policies.fixed import Fixed
from svip_adapters.policies.heuristic import Heuristic
from svip_adapters.policies.rate_optimal import RateOptimal
from svip_adapters.policies.svip import SVIP
from svip_adapters.policies.table import Table
from svip_adapters.policy import LengthPolicy

__all__ = ["COMBINATIONS", "POLICIES", "find_policy", "parse_policy", "split_policies"]

POLICIES: dict[str, type[LengthPolicy]] = {
    "adaedl": AdaEDL,
    "all": AllOf,
    "any": AnyOf,
    "bandit": Bandit,
    "confidence": Confidence,
    "cumulative": Cumulative,
    "fixed": Fixed,
    "heuristic": Heuristic,
    "rate_optimal": RateOptimal,
    "svip": SVIP,
    "svip_fitted": FittedSVIP,
    "table": Table,
}

COMBINATIONS = ("all", "any", "bandit")
_WORDS = {"true": True, "false": False, "none": None}


def parse_policy(text: str) -> LengthPolicy:
    """Build the rule that ``text`` names; the module's docstring has the grammar.

    Raises:
        PolicyError: an unknown name or argument, a missing module or class, or values that a rule refuses.
    """
    text = text.strip()
    name, _, rest = text.partition(":")
    if name in COMBINATIONS:
        return _combine(text, name, rest)
    if name in POLICIES:
        return _build(text, POLICIES[name], rest)
    own = re.fullmatch(r"([\w.]+:[A-Za-z_]\w*)(?:[:,](.*))?", text)
    return _build(text, find_policy(own[1] if own else text), own[2] or "" if own else "")


def find_policy(name: str) -> type[LengthPolicy]:
    """The class of a rule by its name, or of your own by ``module:Class``.

    Raises:
        PolicyError: no such rule, module or class.
    """
    if name in POLICIES:
        return POLICIES[name]
    module, colon, attribute = name.partition(":")
    if colon and re.fullmatch(r"[\w.]+", module) and attribute.isidentifier():
        return _own_class(module, attribute)
    raise PolicyError(
        f"expected a rule such as svip:threshold=0.3, found {name!r}.{_suggest(module, POLICIES)} "
        f"The rules are {', '.join(POLICIES)}; a class of your own is written module:Class."
    )


def split_policies(text: str) -> list[str]:
    """Split a comma-separated list of rules, whose arguments are separated by commas too.

    A piece that reads ``name=value`` belongs to the rule before it: ``svip:threshold=0.3,scale=1,fixed:5``
    is two rules. Empty pieces are dropped.
    """
    rules: list[str] = []
    for piece in filter(None, map(str.strip, text.split(","))):
        if rules and re.match(r"\w+=", piece):
            rules[-1] += f",{piece}"
        else:
            rules.append(piece)
    return rules


def _combine(text: str, name: str, rest: str) -> LengthPolicy:
    parts = [part.strip() for part in rest.split("+")]
    if not all(parts) or any(part.partition(":")[0] in COMBINATIONS for part in parts):
        raise PolicyError(
            f"expected {name}:RULE+RULE, with plain rules, found {text!r}. Write e.g. {name}:svip+fixed:5, "
            "and nest combinations in Python only."
        )
    return POLICIES[name](*map(parse_policy, parts))


def _own_class(module: str, name: str) -> type[LengthPolicy]:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise PolicyError(
            f"expected a rule or an importable module, found {module!r} ({error})."
            f"{_suggest(module, POLICIES)} "
            f"The rules are {', '.join(POLICIES)}; a module of your own must be installed or on PYTHONPATH."
        ) from error
    if not (isinstance(found, type) and issubclass(found, LengthPolicy)):
        what = "nothing of that name" if found is None else repr(found)
        raise PolicyError(
            f"expected {module}:{name} to be a subclass of svip_adapters.LengthPolicy, found {what}. "
            "Check the name, and that the class derives from LengthPolicy."
        )
    return found


def _build(text: str, cls: type[LengthPolicy], arguments: str) -> LengthPolicy:
    positional: list[object] = []
    keywords: dict[str, object] = {}
    mapping: dict[int, object] = {}
    signature = inspect.signature(cls)
    for piece in arguments.split(",") if arguments else ():
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            positional.append(_value(key))
        elif key in keywords or (key.isdecimal() and int(key) in mapping):
            raise PolicyError(f"expected each argument once, found {key!r} twice in {text!r}. Keep one.")
        elif key.isdecimal():
            mapping[int(key)] = _value(value)
        else:
            keywords[key] = _value(value)
    if mapping:
        positional.insert(0, mapping)
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        known = signature.parameters
        hints = "".join(_suggest(key, known) for key in keywords if key not in known)
        raise PolicyError(
            f"expected the arguments of {cls.__name__} ({', '.join(known)}), found {text!r}: {error}.{hints} "
            "Write them as argument=value, separated by commas."
        ) from None
    return cls(*positional, **keywords)


def _value(text: str) -> object:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""
