"""Whether the facade answers as Ray does: the contracts of tests/ray/contracts under both.

    python bench/ray_dropin/check_same.py                  all programs, under Ray and under the facade
    python bench/ray_dropin/check_same.py tasks handles    some of them
    python bench/ray_dropin/check_same.py --update         write Ray's answers to tests/ray/contracts/expected.json
    python bench/ray_dropin/check_same.py --only facade    the facade against the answers that are written there

Ray runs in its own environment (``bench/peers.sh ray`` makes it, RAY_PYTHON names another), the facade with the
interpreter that runs this. What differs on purpose is marked in the programs, with the reason and the facade's answer.
Ends with 1 where something else differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "ray" / "contracts"
EXPECTED = PROGRAMS / "expected.json"
RAY_PYTHON = os.environ.get("RAY_PYTHON", str(ROOT / "bench" / ".envs" / "ray" / "bin" / "python"))
LIMIT = 600  # seconds for one program

Answers = dict[str, dict[str, object]]


def programs() -> list[str]:
    """The names of the programs: files that have contracts."""
    return sorted(path.stem for path in PROGRAMS.glob("*.py") if "def contract_" in path.read_text())


def run(system: str, program: str, names: list[str]) -> Answers:
    """Run a program's contracts; what it told of each, by name."""
    python = [RAY_PYTHON] if system == "ray" else [sys.executable, "-m", "monarch_async.ray"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT) if system != "ray" else "", env.get("PYTHONPATH", "")]))
    with tempfile.NamedTemporaryFile("r") as told:
        command = [*python, str(PROGRAMS / f"{program}.py"), told.name, *names]
        try:
            done = subprocess.run(command, env=env, timeout=LIMIT, capture_output=True, text=True)
            trouble = "" if done.returncode == 0 else f"ended with {done.returncode}\n{done.stderr[-4000:]}"
        except subprocess.TimeoutExpired:
            trouble = f"did not end within {LIMIT} seconds"
        answers = {row["name"]: row for row in map(json.loads, told.read().splitlines())}
    if trouble:
        print(f"{program} under {system}: {trouble}", file=sys.stderr)
    return answers


def compare(program: str, ours: Answers, theirs: dict[str, object]) -> list[str]:
    """What differs, told in lines."""
    told = []
    for name in sorted(theirs.keys() | ours.keys()):
        row = ours.get(name)
        meant = None if row is None else row["differs"]
        expected = meant["answer"] if isinstance(meant, dict) else theirs.get(name)
        if row is None:
            told.append(f"{program}.{name}: the facade has no answer")
        elif name not in theirs:
            told.append(f"{program}.{name}: Ray has no answer")
        elif row["answer"] != expected:
            told.append(f"{program}.{name}:\n    wanted {json.dumps(expected)}\n    facade {json.dumps(row['answer'])}")
    return told


def written() -> dict[str, dict[str, object]]:
    return json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}


def write(answers: dict[str, dict[str, object]]) -> None:
    """One contract a line, so that a change of one is seen."""
    parts = []
    for program, of_names in sorted(answers.items()):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(answer)}" for name, answer in sorted(of_names.items()))
        parts.append(f" {json.dumps(program)}: {{\n{lines}\n }}")
    EXPECTED.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("programs", nargs="*", help="names of programs, or program.contract_name")
    parser.add_argument("--update", action="store_true", help="write Ray's answers")
    parser.add_argument("--only", choices=["ray", "facade"], help="run under one of them")
    return parser.parse_args()


def wanted(given: list[str]) -> dict[str, list[str]]:
    """The contracts to look at, by program; an empty list is all of a program's."""
    found: dict[str, list[str]] = {}
    for each in given or programs():
        program, _, name = each.partition(".")
        found.setdefault(program, []).extend([name] if name else [])
    return found


def timed(system: str, program: str, names: list[str]) -> Answers:
    rows = run(system, program, names)
    seconds = sum(float(str(row["seconds"])) for row in rows.values())
    print(f"{program}: {len(rows)} contracts under {system} in {seconds:.1f} s", flush=True)
    return rows


def main() -> int:
    given = arguments()
    differences, count, known = [], 0, written()
    for program, names in wanted(given.programs).items():
        before = {name: answer for name, answer in known.get(program, {}).items() if not names or name in names}
        theirs = before
        if given.only != "facade":
            theirs = {name: row["answer"] for name, row in timed("ray", program, names).items()}
        if given.update:
            known[program] = {**(known.get(program, {}) if names else {}), **theirs}
            write(known)
            continue
        changed = sorted(name for name in before | theirs if before.get(name) != theirs.get(name))
        differences += [f"{program}.{name}: Ray answers otherwise than is written" for name in changed]
        if given.only != "ray":
            rows = timed("facade", program, names)
            differences += compare(program, rows, theirs)
            count += len(rows)
    print(*differences, f"{count} compared, {len(differences)} differ", sep="\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
