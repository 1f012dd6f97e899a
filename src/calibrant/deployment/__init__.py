"""Deploy what was fitted: one file that runs without Calibrant, and contracts on what was promised."""

from calibrant.deployment._contract import Contract
from calibrant.deployment._export import EXPORT_FORMATS, export

__all__ = ["EXPORT_FORMATS", "Contract", "export"]
