"""What a release is made of: one version of everything, with the hashes of its files."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APART = "torch"  # a CPU or a CUDA build, chosen by whoever installs


def named(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {named(line): line.partition("==")[2] for line in lines if "==" in line}


def locked() -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of every package in the lock."""
    entries = re.findall(
        r"^(\S+)==([^\s;\\]+)[^\\\n]*\\\n((?:    --hash=.*\n?)+)", (ROOT / "requirements.lock").read_text(), re.M
    )
    return {named(name): (version, re.findall(r"--hash=(\S+)", hashes)) for name, version, hashes in entries}


def test_every_package_of_the_lock_has_its_hashes_and_the_version_that_is_tested():
    lock, tested = locked(), constraints()
    assert len(lock) == len(re.findall(r"^\w", (ROOT / "requirements.lock").read_text(), re.M))
    for name, (version, hashes) in lock.items():
        assert tested.get(name, version) == version, name
        assert hashes, name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", found) for found in hashes), name


def test_the_lock_holds_all_that_is_asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {named(one) for one in [*project["dependencies"], *project["optional-dependencies"]["train"]]}
    assert asked - locked().keys() == {APART}
    assert APART in constraints()


def test_what_builds_the_package_has_one_version():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", one) for one in build)
