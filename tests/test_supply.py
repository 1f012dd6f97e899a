"""Versions and hashes of the packages that a release is built and tested with."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNLOCKED = "torch"  # the user chooses a CPU or CUDA build


def package_name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {package_name(line): line.partition("==")[2] for line in lines if "==" in line}


def locked_packages() -> dict[str, tuple[str, list[str]]]:
    """Return the version and hashes of every locked package."""
    entries = re.findall(
        r"^(\S+)==([^\s;\\]+)[^\\\n]*\\\n((?:    --hash=.*\n?)+)", (ROOT / "requirements.lock").read_text(), re.M
    )
    return {package_name(name): (version, re.findall(r"--hash=(\S+)", hashes)) for name, version, hashes in entries}


def test_locked_packages_have_hashes_and_the_tested_version():
    lock, tested_versions = locked_packages(), constraints()
    assert len(lock) == len(re.findall(r"^\w", (ROOT / "requirements.lock").read_text(), re.M))
    for name, (version, hashes) in lock.items():
        assert tested_versions.get(name, version) == version, name
        assert hashes, name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in hashes), name


def test_all_required_packages_are_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = {
        package_name(requirement) for requirement in [*project["dependencies"], *extras["torch"], *extras["train"]]
    }
    assert required - locked_packages().keys() == {UNLOCKED, "calibrant"}  # an extra names another one
    assert UNLOCKED in constraints()


def test_build_requirements_have_one_version():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", requirement) for requirement in build)
