"""The package of adapters: its name, its list, what it leaves alone."""

import importlib
import importlib.metadata
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import svip_adapters.adapters as adapters
from svip_adapters import LengthPolicy
from svip_adapters.adapters._bridge import ChainRound


def test_adapters_refuse_any_other_name():
    spec = importlib.util.spec_from_file_location("adapters", adapters.__file__)
    with pytest.raises(ImportError, match=r"svip_adapters\.adapters"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_every_adapter_is_listed_and_says_what_it_requires():
    files = {path.stem for path in Path(adapters.__file__).parent.glob("[!_]*.py")}
    for name, entry in adapters.HOSTS.items():
        module, function = entry.split(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert name in importlib.import_module(module).REQUIRES
        assert module.rpartition(".")[2] in files


def test_importing_the_adapters_imports_no_host():
    code = "import sys, svip_adapters.adapters; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_through_a_broken_distribution_is_impossible():
    """Garbage is never certain: a NaN on the way must not look like a path that can go on."""
    paths = []

    class Sees(LengthPolicy):
        def stop(self, step):
            paths.append(step.path_logp.item())
            return torch.zeros(1, dtype=torch.bool)

    current = ChainRound(Sees(), limit=9)
    for logits in (torch.zeros(1, 4), torch.full((1, 4), torch.nan), torch.zeros(1, 4)):
        current.ask(logits, torch.tensor([0]))
    assert paths == [0.0, pytest.approx(math.log(1 / 4)), -math.inf]
