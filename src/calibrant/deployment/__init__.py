"""Deploy what was fitted: one file that runs without Calibrant."""

from calibrant.deployment._export import EXPORT_FORMATS, export

__all__ = ["EXPORT_FORMATS", "export"]
