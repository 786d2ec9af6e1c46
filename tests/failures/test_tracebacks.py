"""What a user's own script shows when an endpoint raises: its files, its lines, its classes."""

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = textwrap.dedent(
    """
    import asyncio, sys, threading
    import monarch_async as ma

    class Mine(Exception):
        def __init__(self, text, *, hint="none"):
            super().__init__(text)
            self.hint = hint

    class Worse(Exception):
        def __init__(self, *, hint):
            super().__init__(hint)
            self.lock = threading.Lock()

    def deep(x):
        raise Mine(f"deep {x}")

    class Trainer(ma.Actor):
        @ma.endpoint
        async def step(self, x):
            await asyncio.sleep(0)
            deep(x)

        @ma.endpoint
        async def worse(self):
            raise Worse(hint="worse")

    async def main():
        async with ma.local_hosts() as hosts:
            trainers = await (await hosts.spawn_procs({"gpus": 2})).spawn("trainers", Trainer)
            try:
                await trainers.at(1).step.call_one(7)
            except Mine as error:
                print("caught", type(error.__cause__) is Mine, error.hint, error.type_name)
            try:
                await trainers.at(1).worse.call_one()
            except ma.RemoteError as error:
                print("caught", error.type_name, error.__cause__)
            await trainers.step.call(8)

    ma.run(main())
    """
)


def test_a_script_with_classes_of_its_own(tmp_path: Path) -> None:
    """Classes of ``__main__`` travel by value, arrive as themselves, and the traceback shows the script's own lines."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=50)
    assert done.stdout.splitlines() == ["caught True none Mine", "caught Worse None"]
    assert done.returncode == 1
    line = 1 + PROGRAM.splitlines().index('    raise Mine(f"deep {x}")')
    assert f'File "{script}", line {line}, in deep' in done.stderr
    assert 'raise Mine(f"deep {x}")' in done.stderr
    assert "<dynamic-code>" not in done.stderr
    assert "trainers.step: 2 of 2 members failed; first: trainers[0].step on host0 raised Mine: deep 8" in done.stderr


def test_code_without_a_file(tmp_path: Path) -> None:
    """What was typed into an interpreter has no lines to show; the name of the function is there."""
    program = PROGRAM.replace("ma.run(main())", "try: ma.run(main())\nexcept ma.MeshError as e: print(e.by_rank[0])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert "in deep" in done.stdout
