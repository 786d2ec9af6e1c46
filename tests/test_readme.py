"""The README tells the truth: its programs print what it shows, its commands exist, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROGRAMS = [
    (code, BLOCKS[i + 1][1] if BLOCKS[i + 1 : i + 2] and BLOCKS[i + 1][0] == "text" else "")
    for i, (language, code) in enumerate(BLOCKS)
    if language == "python"
]
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
COMMANDS += re.findall(r"`(monarch-async [^`]+)`", README)
ADDRESS = "tcp://127.0.0.1:7700"
MONARCH = [sys.executable, "-m", "monarch_async.cli.main"]


def test_it_is_short_and_has_blocks_of_known_kinds() -> None:
    assert README.count("\n") < 400
    assert {language for language, _ in BLOCKS} == {"python", "text", "sh", ""}
    first = [line for line in PROGRAMS[0][0].splitlines() if line.strip()]
    assert len(first) == 15
    assert max(map(len, README.splitlines())) <= 120


@pytest.mark.parametrize(
    ("code", "output"),
    [pytest.param(*each, id=f"program{i}", marks=[pytest.mark.slow] * (i > 0)) for i, each in enumerate(PROGRAMS)],
)
def test_a_program_prints_what_the_readme_shows(code: str, output: str, tmp_path: Path) -> None:
    assert output
    agent = None
    if ADDRESS in code:  # the agent that the README starts by hand before
        agent, address = start_agent(tmp_path)
        code = code.replace(ADDRESS, address)
    try:
        (tmp_path / "program.py").write_text(code)
        done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    finally:
        if agent is not None:
            agent.terminate()
            agent.communicate()
    assert done.stderr == ""
    assert done.stdout == output
    assert done.returncode == 0


def start_agent(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Run the README's two commands, but on a free port."""
    (make_token,) = [line for line in COMMANDS if line.endswith("> cluster.token)")]
    subprocess.run(make_token, shell=True, cwd=folder, check=True)
    (command,) = [line for line in COMMANDS if line.startswith("monarch-async agent")]
    words = shlex.split(command.replace(ADDRESS, "tcp://127.0.0.1:0"))
    environ = {name: value for name, value in os.environ.items() if name != "MONARCH_ASYNC_TOKEN"}
    pipe = subprocess.PIPE
    agent = subprocess.Popen([*MONARCH, *words[1:]], cwd=folder, env=environ, text=True, stdout=pipe, stderr=pipe)
    assert agent.stdout is not None
    return agent, agent.stdout.readline().split()[-1]


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("monarch-async")])
def test_a_command_has_the_options_shown(command: str) -> None:
    words = shlex.split(command)
    done = subprocess.run([*MONARCH, words[1], "--help"], capture_output=True, text=True, check=True)
    assert [word for word in words if word.startswith("-") and word not in done.stdout] == []


def test_ci_does_what_the_readme_says() -> None:
    """The two lines that a newcomer types are what `.ci/run` runs."""
    script = (ROOT / ".ci" / "run").read_text()
    lines = [line for line in COMMANDS if line.startswith("pip install")]
    assert len(lines) == 2
    for line in lines:
        install, run = line.split(" && ")
        assert install in script
        assert f"\n    {run}" in script or f"\n{run}" in script


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).is_file()] == []
