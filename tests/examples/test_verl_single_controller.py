"""The example of verl's single controller, run as its docstring says. What it stands on: verl_controller/.

With ``MONARCH_ASYNC_REAL_RAY=1`` it runs under Ray itself.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # every worker imports verl, which takes seconds

PROGRAM = Path(__file__).parents[2] / "examples" / "verl_single_controller.py"
REAL_RAY = os.environ.get("MONARCH_ASYNC_REAL_RAY") == "1"


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_the_example_learns(tmp_path: Path) -> None:
    runner = [] if REAL_RAY else ["-m", "monarch_async.ray"]
    ended = subprocess.run(
        [sys.executable, *runner, str(PROGRAM)], capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ("monarch_async" in ended.stdout) is not REAL_RAY
    assert "rank 0 of 2\nrank 1 of 2\n" in ended.stdout
    rewards = [float(reward) for reward in re.findall(r"reward (0\.\d+)", ended.stdout)]
    assert rewards[0] < 0.5 and rewards[-1] > 0.7
    assert "each arm looks for itself: True" in ended.stdout
