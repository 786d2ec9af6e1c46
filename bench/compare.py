"""Measures monarch_async against Ray, PyTorch Monarch, xoscar and the bare floor, in one run on one machine.

How it is run is in bench/rounds.py, what is measured in bench/README.md.

    python bench/compare.py                         five rounds of everything
    python bench/compare.py --quick                 three short rounds, under 3 minutes
    python bench/compare.py --systems ours,floor --workloads call_one_1,call_8
    python bench/compare.py --show bench/results/2030-01-31.jsonl
"""

import sys

from report import CALLS
from rounds import Comparison, main
from systems import SYSTEMS

COMPARISON = Comparison(CALLS, SYSTEMS)

if __name__ == "__main__":
    sys.exit(main(COMPARISON))
