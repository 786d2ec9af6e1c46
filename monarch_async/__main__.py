"""``python -m monarch_async`` is the command ``monarch-async``, where its script is not on the path."""

import sys

from monarch_async.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
