"""What Ray documents, tried one by one: each contract's answer is the one that Ray gave.

The programs are in tests/ray/contracts; bench/ray_dropin/check_same.py asked Ray and wrote expected.json. Each program
runs once, as a user would run it, when the first of its contracts is looked at.
"""

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONTRACTS = Path(__file__).with_name("contracts")
EXPECTED = json.loads((CONTRACTS / "expected.json").read_text())
ALL = [(program, name) for program in sorted(EXPECTED) for name in EXPECTED[program]]
LIMIT = 50  # seconds for one program


def names_of(program: str) -> list[str]:
    tree = ast.parse((CONTRACTS / f"{program}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("contract_")]


@functools.cache
def answers(program: str) -> tuple[dict[str, dict[str, object]], str]:
    """What a program answered under the facade, by contract, and what it said on its stderr."""
    told = os.memfd_create("answers")
    command = [sys.executable, "-m", "monarch_async.ray", str(CONTRACTS / f"{program}.py"), f"/proc/self/fd/{told}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, pass_fds=[told])
        said = f"ended with {done.returncode}\n{done.stderr}"
    except subprocess.TimeoutExpired as error:
        said = f"took longer than {LIMIT} s\n{(error.stderr or b'').decode()}"
    with os.fdopen(told) as file:
        file.seek(0)
        rows = map(json.loads, file.read().splitlines())
        return {row["name"]: row for row in rows}, said


@pytest.mark.parametrize("program", sorted(EXPECTED))
def test_every_contract_has_an_answer(program: str) -> None:
    assert sorted(names_of(program)) == sorted(EXPECTED[program])


@pytest.mark.slow
@pytest.mark.parametrize(("program", "name"), ALL)
def test_contract(program: str, name: str) -> None:
    rows, said = answers(program)
    assert name in rows, said
    meant = rows[name]["differs"]
    expected = meant["answer"] if isinstance(meant, dict) else EXPECTED[program][name]
    found = rows[name]["answer"]
    assert found == expected, json.dumps(found)
