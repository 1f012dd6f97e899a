"""Deploy what was fitted: one file that runs without Calibrant, and contracts on what was promised."""

from calibrant.deployment._contract import CONTRACT_SUFFIX, Contract
from calibrant.deployment._export import EXPORT_FORMATS, export

__all__ = ["CONTRACT_SUFFIX", "EXPORT_FORMATS", "Contract", "export"]
