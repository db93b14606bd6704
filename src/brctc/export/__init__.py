"""Trained models in other formats (the extra `asr`)."""

from brctc.extras import check_extra

check_extra()

from brctc.export.base import EXPORTS, ExportConfig, export_model
from brctc.export.bundle import BundleExport

__all__ = ["EXPORTS", "BundleExport", "ExportConfig", "export_model"]
