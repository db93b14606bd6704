"""Trained models in other formats (the extra `asr`; `export` for those of ONNX)."""

from brctc.extras import check_extra

check_extra()

from brctc.export.base import EXPORTS, ExportConfig, export_model
from brctc.export.bundle import BundleExport
from brctc.export.onnx_format import OnnxExport
from brctc.export.sherpa import SherpaExport
from brctc.export.web import WebExport

__all__ = [
    "EXPORTS",
    "BundleExport",
    "ExportConfig",
    "OnnxExport",
    "SherpaExport",
    "WebExport",
    "export_model",
]
