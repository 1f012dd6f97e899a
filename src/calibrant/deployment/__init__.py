"""Deploy calibrators in one file that runs without Calibrant, with contracts on tested requirements."""

from calibrant.deployment._contract import Contract
from calibrant.deployment._export import EXPORT_FORMATS, export

__all__ = ["EXPORT_FORMATS", "Contract", "export"]
