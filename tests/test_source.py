"""The rules of the house, checked on every run. What each is for stands beside it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import monarch_async as ma

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "monarch_async"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(PACKAGE / "examples")]
FOLDERS = [path.parent for path in FILES if path.name == "__init__.py" and path.parent != PACKAGE]

MAX_LINES = 400  # one file, one noun: a longer one holds two
MAX_FUNCTION = 60  # a function fits on a screen
MAX_CHAPTER = 40
MAX_TREE = 60  # the chapter of the errors is their tree
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "core", "base", "manager", "types", "lib"}
#: Where files and folders have the names of Ray's, which programs import.
RAYS = PACKAGE / "ray" / "util"
TOP = {"LICENSE", "README.md", "bench", "examples", "monarch_async", "pyproject.toml", "setup.cfg", "tests"}
#: What `import monarch_async` must not load: it is slow, or belongs to another process.
HEAVY = {"torch", "numpy", "pyarrow", "rich", "aiohttp", "uvloop", "argparse"}
NOT_THE_CLIENTS = {f"monarch_async.control.{name}" for name in ("host_agent", "nursery", "zygote", "relay")}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / name), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= MAX_LINES, f"{lines} lines: split it along a noun"
    assert path.stem not in VAGUE or path.is_relative_to(RAYS), "name the file after the thing it defines"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "say in a line what this file is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MAX_FUNCTION, f"{node.name} does not fit on a screen"


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_has_its_chapter(folder: Path) -> None:
    """The docstring of a folder says what the floor is for and names every file."""
    assert folder.name not in VAGUE or folder.is_relative_to(RAYS)
    chapter = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert 5 <= chapter.count("\n") < (MAX_TREE if folder.name == "errors" else MAX_CHAPTER)
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    missing = {stem for stem in files if f"``{stem}``" not in chapter and f"``{stem}.py``" not in chapter}
    missing = {stem for stem in missing if f"`{stem}`" not in chapter}
    assert not missing, f"files that the chapter of {folder.name}/ does not name"


def test_floors() -> None:
    """The contracts of setup.cfg."""
    done = tool("lint-imports", "--no-cache")
    assert done.returncode == 0, done.stdout


def test_lint() -> None:
    done = tool("ruff", "check", "--no-cache", "--output-format", "concise", ".")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_types() -> None:
    done = tool("pyright", "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout


def test_the_import_is_light() -> None:
    """Also where every public name is used: they are imported then."""
    code = "import sys, monarch_async as ma; [getattr(ma, name) for name in ma.__all__]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not HEAVY & loaded
    assert not NOT_THE_CLIENTS & loaded


def test_public_names_are_all_there() -> None:
    """What editors see is what programs get, from the same modules."""
    assert ma.__all__ == sorted(ma.__all__)
    seen: dict[str, str] = {}
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("monarch_async."):
            seen |= {alias.name: str(node.module) for alias in node.names}
    assert seen == {name: f"monarch_async.{home}" for name, home in ma._HOMES.items()} | {
        "__version__": "monarch_async.version"
    }
    assert set(seen) == set(ma.__all__)
    for name, home in seen.items():
        assert getattr(ma, name) is getattr(sys.modules[home], name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ma.nothing  # noqa: B018


def test_the_top_level_holds_what_the_design_names() -> None:
    """Dot-files aside. Only in a checkout: elsewhere nobody says what belongs to it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= TOP
