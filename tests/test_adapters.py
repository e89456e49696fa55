"""The package of adapters: its name, its list, what it leaves alone."""

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import svip_adapters.adapters as adapters


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
