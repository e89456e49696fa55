"""The house keeps its shape: rooms, arrows, sizes."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FOLDERS = {"adapters", "evaluation", "svip_adapters", "tests", "third_party"}
FILES = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints-oldest.txt",
    "constraints-vllm.txt",
    "constraints.txt",
    "pyproject.toml",
}
MADE = {"runs", "build", "dist", "__pycache__", "svip_adapters.egg-info"}  # by make and pip; git ignores them
HOST_MODULES = {"transformers", "eagle", "fastchat", "glide", "sglang", "vllm"}
NOT_HOSTS = {"__init__", "draft_tree"}

PYTHON = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
DOCUMENTS = sorted({*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md"))})
ADAPTERS = sorted(p for p in (ROOT / "adapters").glob("*.py") if p.stem not in NOT_HOSTS and p.stem[0] != "_")


def name(path):
    return path.relative_to(ROOT).as_posix()


def imports(path):
    """(module, whether importing the file runs it) of every import; relative ones as written."""
    found = []

    def walk(node, top):
        for child in ast.iter_child_nodes(node):
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.append(("." * child.level + (child.module or ""), top))
            walk(child, top and not inside)

    walk(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


def under(folder):
    return [path for path in PYTHON if path.is_relative_to(ROOT / folder)]


def test_top_level():
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - MADE
    assert found == FOLDERS | FILES


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_file_is_small_and_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", PYTHON + DOCUMENTS, ids=name)
def test_plain_ascii_and_no_path_of_one_machine(path):
    text = path.read_text(encoding="utf-8")
    assert text.isascii()
    assert not re.search(r"(?<![\w.])/(work|root|farm|home|Users)/", text) or path == Path(__file__)


def test_core_knows_no_host_and_no_room_above_it():
    """svip_adapters -> nothing of ours, but for the lazy names that its __init__ hands on."""
    for path in under("svip_adapters"):
        for module, _ in imports(path):
            assert module.split(".")[0] not in HOST_MODULES | {"tests"}, name(path)
            assert not module.startswith(("svip_adapters.evaluation", "svip_adapters.adapters")), name(path)


def test_adapters_import_their_host_inside_functions():
    """adapters -> svip_adapters; siblings relatively, or one file would live under two names."""
    for path in under("adapters"):
        for module, at_import in imports(path):
            assert not (at_import and module.split(".")[0] in HOST_MODULES), name(path)
            assert not module.startswith(("svip_adapters.evaluation", "svip_adapters.adapters")), name(path)
            assert module.split(".")[0] not in {"adapters", "evaluation", "tests"}, name(path)


def test_evaluation_imports_downwards():
    for path in under("evaluation"):
        for module, _ in imports(path):
            assert not module.startswith("svip_adapters.evaluation"), name(path)
            assert module.split(".")[0] not in {"adapters", "evaluation", "tests"}, name(path)


def test_adapters_folder_is_flat():
    """Each sub-package would need a line of its own in pyproject.toml, and be lost without it."""
    assert {path.name for path in (ROOT / "adapters").iterdir() if path.is_dir()} <= {"__pycache__"}
    assert ADAPTERS


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_every_adapter_has_the_same_shape(path):
    """REQUIRES and patch_<host>(model, threshold=None, *, policy=None), exported and inventoried."""
    import svip_adapters

    module = importlib.import_module(f"svip_adapters.adapters.{path.stem}")
    assert (wanted := Requirement(module.REQUIRES)).specifier or wanted.url
    entry = f"patch_{path.stem}"
    assert entry in svip_adapters.__all__
    assert getattr(svip_adapters, entry) is getattr(module, entry)
    _, threshold, policy = list(inspect.signature(getattr(module, entry)).parameters.values())[:3]
    assert (threshold.name, threshold.default) == ("threshold", None)
    assert (policy.name, policy.default, policy.kind) == ("policy", None, policy.KEYWORD_ONLY)
    inventory = (ROOT / "third_party" / "README.md").read_text(encoding="utf-8")
    assert f"adapters/{path.name}" in inventory
    assert module.REQUIRES in inventory


def test_the_two_constraint_files_differ_in_the_host_only():
    """Same tools and torch in both environments, so that a difference is the host's."""
    pins = [
        dict(line.split("==") for line in (ROOT / file).read_text().splitlines() if not line.startswith("#"))
        for file in ("constraints.txt", "constraints-oldest.txt")
    ]
    differing = {key for key in pins[0].keys() & pins[1].keys() if pins[0][key] != pins[1][key]}
    assert differing == {"huggingface_hub", "tokenizers", "transformers"}
    assert pins[1]["transformers"].startswith("4.57.")
