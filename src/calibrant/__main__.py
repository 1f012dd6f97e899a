"""`python -m calibrant` is the command line.

Python would look for modules in the current folder first, where a `pickle.py` may lie that nobody asked for.
"""

import os
import sys

try:
    here = os.getcwd()  # noqa: PTH109 - pathlib imports more, from that folder
except OSError:  # the folder has been removed
    here = ""
if not sys.flags.safe_path and sys.path[:1] == [here] and not __file__.startswith(f"{here}{os.sep}calibrant"):
    del sys.path[0]

from calibrant.cli import main

main()
