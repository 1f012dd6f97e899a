"""Run the command line: `python -m calibrant`.

Python searches the current folder for modules first. It is removed from the path, so that a file such as `pickle.py`
in it is not imported by accident.
"""

import os
import sys

try:
    folder = os.getcwd()  # noqa: PTH109 - pathlib imports more modules, from that folder
except OSError:  # the folder has been removed
    folder = ""
if not sys.flags.safe_path and sys.path[:1] == [folder] and not __file__.startswith(f"{folder}{os.sep}calibrant"):
    del sys.path[0]

from calibrant.cli import main

main()
