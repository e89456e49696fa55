"""What importing costs, and which names there are."""

import ast
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import svip_adapters


def run(code):
    """Run ``code`` in a fresh interpreter; return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module",
    [
        "svip_adapters",
        "svip_adapters.policies",
        "svip_adapters.policy",
        "svip_adapters.patching",
        "svip_adapters.testing",
    ],
)
def test_import_brings_in_no_torch_and_no_host(module):
    heavy = "{'torch', 'numpy', 'transformers', 'vllm'} & set(sys.modules)"
    assert run(f"import sys, {module}; print(sorted({heavy}))") == "[]"


def test_import_is_cheap():
    """Well under 0.2 s; the best of three, for busy machines."""
    code = "import time; t = time.perf_counter(); import svip_adapters; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.1


def test_names_resolve_and_are_listed():
    assert svip_adapters.__all__ == sorted(svip_adapters.__all__, key=_isort_order)
    for name in svip_adapters.__all__:
        if name == "patch_transformers" and importlib.util.find_spec("transformers") is None:
            continue
        assert getattr(svip_adapters, name) is not None
        assert name in dir(svip_adapters)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = svip_adapters.nothing


def _isort_order(name):
    return (not name.isupper(), not name[0].isupper(), name)


def test_type_checkers_see_the_same_names():
    """The lazy table, ``__all__`` and the imports under TYPE_CHECKING name the same things."""
    tree = ast.parse(Path(svip_adapters.__file__).read_text())
    seen = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen -= {"TYPE_CHECKING", "version"}
    assert seen | {"__version__"} == set(svip_adapters.__all__) == {*svip_adapters._HOMES, "__version__"}


def test_the_typed_example_runs():
    space = runpy.run_path(str(Path(__file__).parent / "typing" / "api.py"))
    assert (
        repr(space["rules"])
        == "[SVIP(threshold=0.3, scale=0.15, max_length=40, stops_before=False), Fixed(n=5)]"
    )


def test_version_is_the_distribution_s():
    from importlib.metadata import version

    assert svip_adapters.__version__ == version("svip-adapters")
