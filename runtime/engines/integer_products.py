"""Exact INT8 matmuls in ONNX Runtime on every processor.

On x86 it multiplies unsigned by signed numbers. VNNI instructions are exact; without VNNI it uses
an instruction that adds two products in 16 bits and saturates. A session option makes weights
unsigned: exact everywhere, and slower with VNNI.
"""

from functools import cache

import numpy as np

from vidc.runtime.ort import onnxruntime

_EXACT = ("session.x64quantprecision", "1")
_ROWS, _DEPTH, _COLUMNS = 4, 64, 16
_PRODUCT = bytes.fromhex(
    "080a3a5c0a180a01780a0177120179220d4d61744d756c496e74656765721201675a130a0178120e0a0c0802"
    "12080a0208040a0208405a130a0177120e0a0c080312080a0208400a02081062130a0179120e0a0c08061208"
    "0a0208040a02081042040a001015"
)
"""An ONNX graph of one MatMulInteger: uint8 ``[4, 64]`` by int8 ``[64, 16]``."""


def ask_exact_products(options: onnxruntime.SessionOptions) -> None:
    """Makes a session's uint8 x int8 matmuls exact on a processor where they saturate."""
    if _saturates():
        options.add_session_config_entry(*_EXACT)


@cache
def _saturates() -> bool:
    """Returns True if the largest uint8 x int8 products saturate on this processor."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    left = np.full((_ROWS, _DEPTH), 255, np.uint8)
    right = np.full((_DEPTH, _COLUMNS), 127, np.int8)
    (product,) = session.run(["y"], {"x": left, "w": right})
    return bool((product != 255 * 127 * _DEPTH).any())
