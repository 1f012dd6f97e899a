"""Tensors in .safetensors files, which hold no code."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from calibrant._core.errors import InputError
from calibrant._core.text import to_one_line


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a .safetensors file.

    Raises:
        InputError: If there is no such file, or it is damaged or of another format.
    """
    if not path.is_file():
        raise InputError("There is no such file.", code="no_file")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"Expected a {path.suffix or 'safetensors'} file, got another or a damaged one ({to_one_line(error)}).",
            code="unreadable",
        ) from None
