"""The rules, one a file, and their names."""

from svip_adapters.policies.adaedl import AdaEDL
from svip_adapters.policies.combine import AllOf, AnyOf
from svip_adapters.policies.confidence import Confidence
from svip_adapters.policies.cumulative import Cumulative
from svip_adapters.policies.fixed import Fixed
from svip_adapters.policies.heuristic import Heuristic
from svip_adapters.policies.spec import POLICIES, parse_policy, split_policies
from svip_adapters.policies.svip import SVIP
from svip_adapters.policies.table import Table

__all__ = [
    "POLICIES",
    "SVIP",
    "AdaEDL",
    "AllOf",
    "AnyOf",
    "Confidence",
    "Cumulative",
    "Fixed",
    "Heuristic",
    "Table",
    "parse_policy",
    "split_policies",
]
