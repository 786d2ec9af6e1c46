"""What an editor and a type checker see: pyright over the package, over what users write, and over their mistakes."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

Reports = dict[Path, list[dict[str, Any]]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # where nothing is cached yet


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What pyright says of each file, with the project's own settings; one run for all, as starting it takes long."""
    folder = tmp_path_factory.mktemp("pyright")

    def path_to(*names: str) -> list[str]:  # pyright takes no absolute ones
        return [os.path.relpath(ROOT / name, folder) for name in names]

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    settings["include"] = path_to(*settings["include"], "tests/typing/accepted.py", "tests/typing/rejected.py")
    settings["exclude"] = path_to(*settings.get("exclude", []))
    (settings["stubPath"],) = path_to(settings["stubPath"])
    settings["extraPaths"] = path_to(".")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--project", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 50
    found: Reports = {HERE / "accepted.py": [], HERE / "rejected.py": []}
    for diagnostic in report["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            found.setdefault(Path(diagnostic["file"]), []).append(diagnostic)
    return found


def shown(path: Path, diagnostics: list[dict[str, Any]]) -> str:
    return "\n".join(f"{path}:{d['range']['start']['line'] + 1}: {d['message']}" for d in diagnostics)


def test_the_package_and_the_examples_have_no_type_errors(reports: Reports) -> None:
    found = [shown(path, errors) for path, errors in reports.items() if not path.is_relative_to(HERE)]
    assert not found, "\n".join(found)


def test_what_a_user_writes_is_accepted_with_the_right_types(reports: Reports) -> None:
    accepted = HERE / "accepted.py"
    assert not reports[accepted], shown(accepted, reports[accepted])


def test_mistakes_are_reported_where_they_are(reports: Reports) -> None:
    rejected = HERE / "rejected.py"
    expected = [n for n, line in enumerate(rejected.read_text().splitlines(), 1) if "# expect-error" in line]
    reported = sorted({diagnostic["range"]["start"]["line"] + 1 for diagnostic in reports[rejected]})
    assert reported == expected, shown(rejected, reports[rejected])
