"""Deploy calibrators: files that run without Calibrant, and contracts on requirements. It never fits a calibrator."""

from calibrant.deployment._contract import Contract
from calibrant.deployment._export import EXPORT_FORMATS, export

__all__ = ["EXPORT_FORMATS", "Contract", "export"]
