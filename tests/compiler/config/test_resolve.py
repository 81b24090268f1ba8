import json
from types import SimpleNamespace

import pytest
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vidc.compiler.config.backend import PREFERENCE
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.precision import resolve_precision
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.schema import build_tables
from vidc.compiler.config.targets import targets
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.errors import UnavailableError, UsageError

LAYERS = ("preset", "--config", "VIDC_PRECISION", "--set", "--precision")
GPU_PRECISIONS = ("fp32", "fp16", "bf16", "fp8")

few = settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_defaults_of_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = resolve(environ={})
    assert found.preset == "longlive-1.3b"
    assert found.target.name == "cpu"
    assert found.backend == "onnxruntime"
    assert set(found.precision.values()) == {"fp32"}
    assert found.model.stream.window == 12
    assert found.origins["gpu"] == "default"
    assert found.origins["backend"] == "default"
    assert found.origins["stream.window"] == "preset longlive-1.3b"
    assert found.origins["stream.batch"] == "default"


@few
@given(said=st.dictionaries(st.sampled_from(LAYERS), st.sampled_from(GPU_PRECISIONS), min_size=1))
def test_the_highest_layer_that_sets_a_precision_decides(tmp_path, said):
    preset = tmp_path / "mine.toml"
    own = f'[precision]\ndefault = "{said["preset"]}"\n' if "preset" in said else ""
    preset.write_text(f'description = "d"\nextends = "longlive-1.3b"\n{own}')
    config = tmp_path / "config.toml"
    config.write_text(f'precision.default = "{said.get("--config")}"' * ("--config" in said))

    found = resolve(
        str(preset),
        gpu="h100",
        backend="aoti",
        config=config,
        environ={"VIDC_PRECISION": said["VIDC_PRECISION"]} if "VIDC_PRECISION" in said else {},
        assignments=[f"precision.default={said['--set']}"] if "--set" in said else [],
        precision=said.get("--precision"),
    )

    highest = next(layer for layer in reversed(LAYERS) if layer in said)
    origin = {
        "preset": "preset mine",
        "--config": f"--config {config}",
        "--set": "--set precision.default",
    }.get(highest, highest)
    if said[highest] == "fp8":
        # A recipe's business: the rest stays in what the layers below say.
        assert found.named_precision("transformer") == "fp8"
        assert found.origins["quantization.precision"] == origin
        # --precision takes the place of --set precision.default, which is of the same layer.
        hidden = {"--set"} if "--precision" in said else set()
        rest = [said[layer] for layer in LAYERS if layer in said and layer not in hidden]
        below = [precision for precision in rest if precision != "fp8"]
        high = below[-1] if below else "bf16"
        assert found.precision["transformer"] == high
        assert found.precision["vae"] == high.replace("bf16", "fp16")
        return
    for group in CausalVideo.groups:
        own = said[highest].replace("bf16", "fp16") if group == "vae" else said[highest]
        assert found.precision[group] == own
        assert found.origins[f"precision.{group}"] == origin


@few
@given(said=st.sets(st.sampled_from(("preset", "--config", "--set")), min_size=1))
def test_the_highest_layer_that_sets_a_size_decides(tmp_path, said):
    windows = {"preset": 15, "--config": 18, "--set": 21}
    preset = tmp_path / "mine.toml"
    own = "[stream]\nwindow = 15\n" if "preset" in said else ""
    preset.write_text(f'extends = "tiny"\n{own}')
    config = tmp_path / "config.toml"
    config.write_text("stream.window = 18" if "--config" in said else "")
    found = resolve(
        str(preset),
        gpu="cpu",
        config=config,
        assignments=["stream.window=21"] if "--set" in said else [],
        environ={},
    )
    highest = next(layer for layer in ("--set", "--config", "preset") if layer in said)
    assert found.model.stream.window == windows[highest]
    assert found.origins["stream.window"].startswith(highest)


LAYER = st.dictionaries(
    st.sampled_from(
        [f"precision.{scope}{leaf}" for scope in ("", "cpu.", "t4.") for leaf in ("default", "vae")]
    ),
    st.sampled_from(("fp32", "fp16")),
)


@given(layers=st.lists(LAYER, min_size=1, max_size=4), higher=LAYER)
def test_higher_layer_changes_only_precisions_it_sets(layers, higher):
    base = {"precision.default": Setting("bf16", "base")}
    below = [base, *({k: Setting(v, "below") for k, v in layer.items()} for layer in layers)]
    above = {name: Setting(value, "above") for name, value in higher.items()}
    cpu = targets()["cpu"]
    before, after = (
        resolve_precision(below, cpu, CausalVideo),
        resolve_precision([*below, above], cpu, CausalVideo),
    )
    speaks = {
        "vae": any(not name.startswith("precision.t4") for name in higher),
        "transformer": not higher.keys().isdisjoint({"precision.default", "precision.cpu.default"}),
    }
    for group, spoken in speaks.items():
        assert (after[group].origin == "above") == spoken
        if not spoken:
            assert after[group] == before[group]


def test_a_group_and_a_target_are_more_specific_than_the_default():
    layer = {
        "precision.default": Setting("bf16", "layer"),
        "precision.vae": Setting("fp16", "layer"),
        "precision.cpu.default": Setting("fp32", "layer"),
    }
    on_cpu = resolve_precision([layer], targets()["cpu"], CausalVideo)
    on_gpu = resolve_precision([layer], targets()["h100"], CausalVideo)
    assert {g: s.value for g, s in on_cpu.items()} == dict.fromkeys(CausalVideo.groups, "fp32")
    assert on_gpu["vae"].value == "fp16"
    assert on_gpu["transformer"].value == "bf16"


def test_set_names_a_group_that_the_precision_flag_then_leaves_alone():
    found = resolve(
        "tiny",
        gpu="h100",
        backend="aoti",
        precision="bf16",
        assignments=["precision.vae=fp16"],
        environ={},
    )
    assert found.precision == {**dict.fromkeys(CausalVideo.groups, "bf16"), "vae": "fp16"}


@pytest.mark.parametrize(
    ("arguments", "code", "suggestion"),
    [
        ({"preset": "longlive"}, "VIDC-CONFIG-PRESET", "'longlive-1.3b'"),
        ({"gpu": "h10"}, "VIDC-CONFIG-TARGET", "'h100'"),
        ({"precision": "fp23"}, "VIDC-CONFIG-PRECISION", "'fp32'"),
        ({"backend": "onxruntime"}, "VIDC-CONFIG-BACKEND", "'onnxruntime'"),
        ({"assignments": ["stream.windw=9"]}, "VIDC-CONFIG-SETTING", "'window'"),
        ({"assignments": ["streem.window=9"]}, "VIDC-CONFIG-SETTING", "'stream'"),
        ({"assignments": ["window=9"]}, "VIDC-CONFIG-SETTING", "stream.window"),
        ({"assignments": ["precision.h10.vae=fp16"]}, "VIDC-CONFIG-SETTING", "'h100'"),
        ({"assignments": ["stream=9"]}, "VIDC-CONFIG-SETTING", "stream.window"),
        ({"assignments": ["stream.window.x=9"]}, "VIDC-CONFIG-SETTING", "deeper"),
        ({"assignments": ["stream.window"]}, "VIDC-CONFIG-SETTING", "key=value"),
        ({"assignments": ["stream.window=wide"]}, "VIDC-CONFIG-SETTING", "an integer"),
        ({"environ": {"VIDC_GPUS": "h100"}}, "VIDC-CONFIG-ENVIRONMENT", "'VIDC_GPU'"),
        ({"environ": {"VIDC_GPU": "b20"}}, "VIDC-CONFIG-TARGET", "'b200'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(arguments, code, suggestion):
    with pytest.raises(UsageError) as raised:
        resolve(**{"preset": "tiny", "environ": {}, **arguments})
    assert raised.value.code == code
    assert suggestion in raised.value.hint
    assert raised.value.exit_code == 2


def test_a_message_says_where_the_wrong_value_came_from():
    with pytest.raises(UsageError, match="VIDC_PRECISION"):
        resolve("tiny", gpu="cpu", environ={"VIDC_PRECISION": "half"})


def test_a_precision_that_the_target_lacks_is_refused_by_name():
    with pytest.raises(
        UnavailableError, match=r"t4 has no bf16 .*--precision.*fp32, fp16, int8"
    ) as e:
        resolve("tiny", gpu="t4", precision="bf16", backend="aoti", environ={})
    assert (e.value.code, e.value.exit_code) == ("VIDC-TARGET-PRECISION", 3)


def test_a_precision_that_the_backend_lacks_is_refused_by_name():
    with pytest.raises(UnavailableError) as raised:
        resolve("tiny", gpu="cpu", precision="bf16", environ={})
    assert (raised.value.code, raised.value.exit_code) == ("VIDC-BACKEND-PRECISION", 3)
    assert "onnxruntime has no bf16 (--precision) on cpu; it has fp32, fp16" in str(raised.value)


@pytest.fixture
def cpu_alone(register):
    """No backend builds for anything but a CPU."""
    register(dict.fromkeys(PREFERENCE["cpu"], lambda target: set() if target.is_gpu else {"fp32"}))


def test_a_target_that_no_backend_builds_for_has_one_way_out(cpu_alone):
    for backend in (None, "aoti"):
        with pytest.raises(UnavailableError) as raised:
            resolve("tiny", gpu="h100", backend=backend, environ={})
        assert raised.value.code == "VIDC-BACKEND-TARGET"
        assert "no backend of this version builds for h100 yet (--gpu)" in raised.value.message
        assert "--gpu cpu" in raised.value.hint
        assert "--backend" not in raised.value.hint


def test_a_gpu_that_is_there_is_not_passed_over_for_the_cpu(cpu_alone, monkeypatch):
    gpu = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=85e9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: gpu)
    with pytest.raises(UnavailableError, match="this machine's GPU") as raised:
        resolve("tiny", environ={})
    assert raised.value.code == "VIDC-BACKEND-TARGET"
    assert resolve("tiny", gpu="cpu", environ={}).target.name == "cpu"


def test_unsupported_target_error_names_another_backend():
    says = r"builds nothing for h100 \(--gpu\): it serves no cuda"
    with pytest.raises(UnavailableError, match=says) as raised:
        resolve("tiny", gpu="h100", backend="onnxruntime", environ={})
    assert (raised.value.code, raised.value.hint) == ("VIDC-BACKEND-TARGET", "pass --backend aoti")


@pytest.mark.parametrize(("device", "gpu"), [("cpu", "cpu"), ("cuda", "h100")])
def test_the_default_backend_is_the_first_that_builds_for_the_target(register, device, gpu):
    building = set(PREFERENCE[device])
    register(
        {
            name: lambda _, name=name: {"fp32"} if name in building else set()
            for name in PREFERENCE[device]
        }
    )
    for name in PREFERENCE[device]:
        assert resolve("tiny", gpu=gpu, environ={}).backend == name
        building.remove(name)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("gpu", ["cpu", "h100"])
def test_graphs_alone_need_no_backend(gpu, precision):
    found = resolve("tiny", gpu=gpu, precision=precision, environ={}, engines=False)
    assert found.target.name == gpu
    assert set(found.precision.values()) == {precision}


@pytest.mark.parametrize(
    ("gpu", "options", "vae"),
    [
        ("h100", {}, "fp16"),
        ("h100", {"precision": "bf16"}, "fp16"),
        ("h100", {"precision": "fp8"}, "fp16"),
        ("h100", {"assignments": ["precision.vae=bf16"]}, "bf16"),
        ("h100", {"assignments": ["precision.h100.vae=bf16"]}, "bf16"),
        ("h100", {"precision": "fp16"}, "fp16"),
        ("cpu", {"precision": "bf16", "backend": "aoti"}, "bf16"),
    ],
)
def test_a_vae_on_a_gpu_is_in_fp16_where_bf16_is_asked_for(gpu, options, vae):
    found = resolve("longlive-1.3b", gpu=gpu, environ={}, **options)
    assert found.precision["vae"] == vae
    assert found.precision["transformer"] == options.get("precision", "bf16").replace("fp8", "bf16")


def test_graphs_are_not_there_in_every_precision_of_a_target():
    with pytest.raises(UnavailableError, match=r"fp8 \(--precision\).*fp32, fp16, bf16") as raised:
        resolve("tiny", gpu="h100", precision="fp8", environ={}, engines=False)
    assert raised.value.code == "VIDC-EXPORT-PRECISION"
    with pytest.raises(UnavailableError) as raised:
        resolve("tiny", gpu="t4", precision="bf16", environ={}, engines=False)
    assert raised.value.code == "VIDC-TARGET-PRECISION"


def test_a_value_of_set_is_toml_or_else_a_string():
    found = resolve(
        "tiny",
        assignments=["sampler.steps=[1000, 500]", "sampler.shift=3", "gpu=cpu"],
        environ={},
    )
    assert found.model.sampler.steps == (1000, 500)
    assert found.model.sampler.shift == 3.0
    assert found.origins["gpu"] == "--set gpu"


def test_flag_wins_over_set():
    found = resolve("tiny", gpu="cpu", assignments=["gpu=h100"], environ={})
    assert found.target.name == "cpu"
    assert found.origins["gpu"] == "--gpu"


def test_every_value_has_an_origin():
    found = resolve("tiny", gpu="cpu", environ={})
    assert found.values().keys() == found.origins.keys()
    for table, kind in build_tables(CausalVideo).items():
        for name in kind.__dataclass_fields__:
            assert f"{table}.{name}" in found.origins


def test_the_document_is_json_and_names_every_table():
    found = resolve("tiny", gpu="cpu", environ={})
    document = found.to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["stream"]["window"] == 12
    assert document["target"] == {"name": "cpu", "compute_capability": None, "memory_gb": None}


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="sink") as raised:
        resolve("tiny", gpu="cpu", assignments=["stream.window=5"], environ={})
    assert raised.value.code == "VIDC-CONFIG-SIZES"


def test_a_prompt_switch_outside_the_rollout_is_refused():
    with pytest.raises(UsageError, match="switch_after"):
        resolve("tiny", gpu="cpu", assignments=["validate.switch_after=8"], environ={})


@pytest.mark.parametrize("texts", ['["a fox"]', '["a fox", " "]', '["a", "b", "c"]'])
def test_a_rollout_has_a_prompt_before_its_switch_and_one_after(texts):
    with pytest.raises(UsageError, match=r"VIDC-CONFIG-SIZES.*validate\.prompts"):
        resolve("tiny", gpu="cpu", assignments=[f"validate.prompts={texts}"], environ={})
    given = ['validate.prompts=["a fox", "a hen"]', 'calibrate.prompts=["a cat"]']
    found = resolve("tiny", gpu="cpu", assignments=given, environ={})
    assert found.validate.prompts == ("a fox", "a hen")
    assert found.calibrate.prompts == ("a cat",)


@pytest.mark.parametrize("limit", ["0", "-1", "2000"])
def test_a_workspace_that_no_gpu_has_is_refused(limit):
    with pytest.raises(UsageError, match=r"tensorrt\.workspace_gb") as caught:
        resolve("tiny", gpu="cpu", assignments=[f"tensorrt.workspace_gb={limit}"], environ={})
    assert caught.value.code == "VIDC-CONFIG-SIZES"
