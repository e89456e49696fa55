"""The three ways to install this: wheel, sdist and editable; each beside AdapterHub's `adapters`."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = {
    "svip_adapters": "svip_adapters",
    "adapters": "svip_adapters/adapters",
    "evaluation": "svip_adapters/evaluation",
}
NEIGHBOUR = "adapters==1.3.0"  # AdapterHub's distribution, which owns the top-level name `adapters`

BOTH = """
import importlib.metadata, importlib.util, json, sys
import svip_adapters, svip_adapters.adapters, svip_adapters.evaluation.cli
from svip_adapters import SVIP
spec = importlib.util.find_spec("adapters")
owners = importlib.metadata.packages_distributions()
print(json.dumps({
    "adapters": spec.origin,
    "ours": svip_adapters.adapters.__file__,
    "owners": {name: sorted(set(owners.get(name, []))) for name in ("adapters", "evaluation", "tests")},
    "heavy": sorted({"torch", "transformers"} & set(sys.modules)),
    "policy": repr(SVIP()),
}))
"""


def run(*command, cwd=None):
    """Run a command; its output, or a failed test that shows it."""
    # A PYTHONPATH from outside would put another copy in front of the installed one.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments, cwd=None):
    """The pip of this environment, quiet about the machine's configuration."""
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments, cwd=cwd)


def tree_files():
    """Path in the wheel of every file of the shipped folders, compiled ones left out."""
    return {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in SHIPPED.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the checkout (a build leaves files behind), its sdist, and the wheel made from that."""
    out = tmp_path_factory.mktemp("packaging")
    source = out / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in SHIPPED:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = "import setuptools.build_meta as backend, sys; backend.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, out, cwd=source)
    (sdist,) = out.glob("*.tar.gz")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", out, sdist)
    (wheel,) = out.glob("*.whl")
    return SimpleNamespace(source=source, sdist=sdist, wheel=wheel)


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory):
    """AdapterHub's wheel, downloaded once."""
    folder = tmp_path_factory.mktemp("neighbour")
    try:
        pip("download", "--no-deps", "-d", folder, NEIGHBOUR)
    except AssertionError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs {NEIGHBOUR} from the package index: {str(error).strip().splitlines()[-1]}")
    return next(folder.glob("*.whl"))


def environment(folder, *installs):
    """A fresh environment with only ``installs``; dependencies are looked up in this one, after it."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    paths = sysconfig.get_paths()
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A plain path in a .pth file does not run the .pth files in it: no editable install leaks through.
    (site / "dependencies.pth").write_text("\n".join({paths["purelib"], paths["platlib"]}))
    pip("--python", python, "install", "--no-deps", "--no-build-isolation", "-I", *installs)
    return python


@pytest.fixture(scope="module")
def from_wheel(built, neighbour, tmp_path_factory):
    """Python of an environment that holds the wheel and AdapterHub's."""
    return environment(tmp_path_factory.mktemp("wheel") / "venv", built.wheel, neighbour)


@pytest.fixture(scope="module")
def editable(built, neighbour, tmp_path_factory):
    """Python of an environment with the copied checkout, editable, and AdapterHub's."""
    return environment(tmp_path_factory.mktemp("editable") / "venv", "-e", built.source, neighbour)


def test_wheel_holds_every_file_and_nothing_else(built):
    """A data file that pyproject.toml forgets, or a folder that lands at the top level, shows here."""
    with zipfile.ZipFile(built.wheel) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        tops = {name.split("/")[0] for name in wheel.namelist()}
    assert found == tree_files()
    assert "svip_adapters/py.typed" in found
    assert tops == {"svip_adapters", f"svip_adapters-{version('svip-adapters')}.dist-info"}


def test_sdist_holds_what_the_wheel_is_built_from(built):
    with tarfile.open(built.sdist) as sdist:
        found = {name.partition("/")[2] for name in sdist.getnames()}
    expected = {path.relative_to(ROOT) for folder in SHIPPED for path in (ROOT / folder).rglob("*.py")}
    assert {path.as_posix() for path in expected if "__pycache__" not in path.parts} <= found
    assert {"pyproject.toml", "README.md", "LICENSE"} <= found


def test_metadata(built):
    """torch and numpy are all the core asks for; hosts and the benchmark are extras."""
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
        assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    requires = metadata.get_all("Requires-Dist")
    assert {line.split(">")[0] for line in requires if "extra ==" not in line} == {"numpy", "torch"}
    assert {"transformers", "eval", "dev", "vllm", "fschat"} == set(metadata.get_all("Provides-Extra"))
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("kind", ["from_wheel", "editable"])
def test_lives_beside_adapterhub(kind, built, request, tmp_path):
    """`adapters` stays theirs, `svip_adapters.adapters` is ours, and importing ours loads no host."""
    python = request.getfixturevalue(kind)
    found = json.loads(run(python, "-c", BOTH, cwd=tmp_path))
    home = python.parent.parent if kind == "from_wheel" else built.source
    assert Path(found["ours"]).is_relative_to(home)
    assert Path(found["adapters"]).is_relative_to(python.parent.parent)
    assert found["owners"]["adapters"] == ["adapters"]
    assert "svip-adapters" not in found["owners"]["evaluation"] + found["owners"]["tests"]
    assert found["heavy"] == []
    assert found["policy"].startswith("SVIP(threshold=0.3")


@pytest.mark.skipif(
    not version("transformers").startswith("4.57."), reason="AdapterHub's asks for transformers 4.57"
)
def test_adapterhub_imports_in_one_process(from_wheel, tmp_path):
    code = "import adapters, svip_adapters; print(adapters.__version__, svip_adapters.patch_transformers)"
    assert run(from_wheel, "-c", code, cwd=tmp_path).startswith(NEIGHBOUR.partition("==")[2])


def test_editable_install_works_at_the_root(editable, built):
    """`python -m pytest` and `python -c` put the root in front of sys.path; new files need no reinstall."""
    (built.source / "adapters" / "just_written.py").write_text("ANSWER = 42\n")
    code = (
        "import svip_adapters.evaluation.cli, svip_adapters.adapters.just_written as new; print(new.ANSWER)"
    )
    assert run(editable, "-c", code, cwd=built.source).strip() == "42"


def test_folder_refuses_the_wrong_name():
    """At the root of a checkout `import adapters` would find our folder: it must say so, not half work."""
    code = "import adapters"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "ImportError: expected to be imported as svip_adapters.adapters, found adapters" in done.stderr


def test_console_script(from_wheel, tmp_path):
    """`svip-bench` starts from the wheel and finds the data files it ships."""
    assert "--policies" in run(from_wheel.parent / "svip-bench", "run", "--help", cwd=tmp_path)
    code = "from svip_adapters.evaluation import prompts; print(len(prompts.load('builtin')))"
    assert run(from_wheel, "-c", code, cwd=tmp_path).strip() == "16"


@pytest.mark.slow
def test_types_hold_on_the_wheel(from_wheel, tmp_path):
    """Installed, a type checker follows svip_adapters.adapters; in an editable checkout it cannot."""
    shutil.copy(ROOT / "tests" / "typing" / "api.py", tmp_path)
    mypy = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"]
    mypy += ["--python-executable", from_wheel, "--cache-dir", tmp_path / "cache"]
    run(*mypy, "-p", "svip_adapters", cwd=tmp_path)
    run(*mypy, "api.py", cwd=tmp_path)
