"""Measures the data plane against memcpy, Ray, PyTorch Monarch, xoscar and Arrow Flight, in one run on one machine.

How it is run is in bench/rounds.py, what is measured in bench/README.md, and each system's part in
bench/workloads/bulk_*.py.

    python bench/data_plane.py                      five rounds of everything
    python bench/data_plane.py --quick              three short rounds
    python bench/data_plane.py --systems ours,memcpy --workloads fetch_256m,fetch_256m_tcp
    python bench/data_plane.py --show bench/results/2030-01-31.jsonl --markdown
"""

import sys
from pathlib import Path

from report import OURS, Board, Share, Target
from rounds import Comparison, main
from systems import HERE, System, peer_python

MEMCPY = "memcpy"
MOST_OF_MEMCPY = Share(0.8, MEMCPY, "fetch_256m")
THRICE_IDLE = Share(3, OURS, "control_p99")

BOARD = Board(
    "data_plane",
    (
        Target("fetch_256m", "GB/s", MOST_OF_MEMCPY),
        Target("fetch_256m_cma", "GB/s", MOST_OF_MEMCPY),
        Target("fetch_256m_memfd", "GB/s"),
        Target("fetch_256m_ucx", "GB/s"),
        Target("fetch_256m_tcp", "GB/s", 4),
        Target("fetch_4k", "µs", 120, more_is_better=False),
        Target("fetch_4k_raw_cma", "µs", 15, more_is_better=False),
        Target("fetch_4k_raw_ucx", "µs", 15, more_is_better=False),
        Target("argument_100mb", "GB/s", 5),
        Target("argument_100mb_8", "GB/s", Share(1 / 1.5, OURS, "argument_100mb")),
        Target("arguments_1m_64", "GB/s", 2),
        Target("put_100mb", "GB/s", 5),
        Target("get_100mb", "ms", 1, more_is_better=False),
        Target("control_p99", "µs", more_is_better=False),
        Target("control_p99_4g", "µs", THRICE_IDLE, more_is_better=False),
        Target("control_p99_4g_tcp", "µs", THRICE_IDLE, more_is_better=False),
        Target("weights_4", "GB/s", 3),
        Target("torn_in_1000", "torn reads", 0, more_is_better=False),
    ),
    peers=("monarch", "ray", "xoscar", "flight"),
    bounds=(MEMCPY,),
)
EVERYTHING = tuple(target.workload for target in BOARD.targets)
MOVES = ("fetch_256m", "fetch_4k")
ARGUMENTS = ("argument_100mb", "argument_100mb_8", "arguments_1m_64")
OBJECTS = ("put_100mb", "get_100mb")
CONTROL = ("control_p99", "control_p99_4g")


def system(name: str, python: Path, able: tuple[str, ...], is_peer: bool = False) -> System:
    unable = tuple(workload for workload in EVERYTHING if workload not in able)
    return System(name, f"bulk_{name}.py", python, (name,), unable, is_peer=is_peer)


SYSTEMS = (
    system(OURS, HERE, EVERYTHING),
    system(MEMCPY, HERE, (*MOVES, "argument_100mb", "put_100mb", "weights_4")),
    system("monarch", peer_python("monarch"), (*MOVES, *ARGUMENTS, *CONTROL, "weights_4"), is_peer=True),
    system("ray", peer_python("ray"), (*MOVES, *ARGUMENTS, *OBJECTS, "weights_4"), is_peer=True),
    system("xoscar", peer_python("xoscar"), (*MOVES, *ARGUMENTS, "weights_4"), is_peer=True),
    system("flight", HERE, (*MOVES, *OBJECTS)),
)
COMPARISON = Comparison(BOARD, SYSTEMS)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
