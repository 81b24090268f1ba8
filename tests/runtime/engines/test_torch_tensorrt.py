"""Plans of backend ``torch_tensorrt`` that the loader of plans refuses.

Stand-ins for package and product write and read them.
"""

import sys
from dataclasses import replace

import fake_tensorrt
import fake_torch_tensorrt
import pytest
import torch

from vidc.compiler.backends.torch_tensorrt import converters
from vidc.compiler.backends.torch_tensorrt.backend import backend
from vidc.compiler.config.targets import targets
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.program import export_program, save_program
from vidc.plugins.errors import GateError
from vidc.runtime import manifest
from vidc.runtime.engines.tensorrt import load
from vidc.runtime.files import Files
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
VERSION = "9.8.7"


@pytest.fixture(scope="module", autouse=True)
def stand_ins():
    with pytest.MonkeyPatch.context() as patch:
        for name, module in fake_torch_tensorrt.modules("tensorrt_rtx", {}).items():
            patch.setitem(sys.modules, name, module)
        product = fake_tensorrt.module("tensorrt_rtx", VERSION)
        patch.setitem(sys.modules, "tensorrt_rtx", product)
        converters.register.cache_clear()
        yield
        converters.register.cache_clear()


def compiled(config, name, folder):
    """The entry of an engine that is built into a folder."""
    group = config.components[name]
    component = config.parts[group].components(config.parts[group].network("fp32"))[name]
    (folder / name).mkdir()
    exported = ExportedComponent(name, folder / name, component.signature, component.aligned)
    save_program(export_program(component), exported.program)
    engine = backend.compile(exported, targets()["rtx4090"], {}, folder)
    return manifest.Engine(
        "torch_tensorrt", engine.loader, VERSION, "fp32", engine.files, engine.signature,
        dict(engine.options), engine.requires,
    )  # fmt: skip


@pytest.fixture(scope="module")
def text_kv(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text_kv")
    return folder, compiled(config, "text_kv", folder)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (("output0", "output1"), "two of them have one name"),
        (("output0", "cross.q.0.out"), "cross.q.0.out is"),
        (("values_0", "transformer.absent"), "weight transformer.absent is not in the bundle"),
    ],
)
def test_names_that_are_not_the_manifest_s_are_refused(weights, text_kv, first, says):
    folder, entry = text_kv
    names = entry.options["names"]
    tensor, other = first
    wrong = names | {tensor: names.get(other, other)}
    changed = replace(entry, options=entry.options | {"names": wrong})
    with pytest.raises(GateError, match=says) as caught:
        load(Files(folder), changed, Weights(weights, CPU), CPU)
    assert caught.value.code == "VIDC-ENGINE-SIGNATURE"
