"""Install the other packages into the current environment: python benchmarks/install.py CONSTRAINTS."""

import subprocess
import sys
from pathlib import Path


def main() -> None:
    """Install each line of peers.txt, and print whether it worked."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        sys.argv[1],
    ]
    for line in Path(__file__).with_name("peers.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            process = subprocess.run([*pip, *line.split()], capture_output=True, text=True, check=False)
            errors = [text for text in process.stderr.splitlines() if text.startswith("ERROR")]
            print(
                f"{line}: {'installed' if process.returncode == 0 else 'left out: ' + (errors or ['?'])[0]}", flush=True
            )


if __name__ == "__main__":
    main()
