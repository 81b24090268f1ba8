"""ONNX Runtime without its telemetry, which the user's ``ORT_DISABLE_TELEMETRY=0`` turns on again.

Its Linux wheels otherwise write a device identifier below the home folder and send events when a
session is created. They read the variable once, so nothing else in vidc imports the package.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

__all__ = ["onnxruntime"]
