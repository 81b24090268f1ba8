"""LoRAs as public trainers write them, merged as diffusers merges them."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.load import load_weights, lora_files
from vidc.exporters.checkpoint.read import read_checkpoint
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import disagreements
from vidc.plugins.errors import BuildError

State = dict[str, Tensor]
Shapes = dict[str, torch.Size]
Pairs = dict[str, tuple[Tensor, Tensor]]

ATTENTION = ("self_attn", "cross_attn")
MODULES = [
    f"blocks.{i}.{module}"
    for i in range(2)
    for module in (*(f"{a}.{x}" for a in ATTENTION for x in "qkvo"), "ffn.0", "ffn.2")
]
RANK = 4


@pytest.fixture(scope="module")
def pairs(original: State) -> Pairs:
    """A and B for every linear layer of the blocks, by original name."""
    torch.manual_seed(3)
    return {
        module: (torch.randn(RANK, weight.shape[1]), torch.randn(weight.shape[0], RANK))
        for module in MODULES
        for weight in [original[f"{module}.weight"]]
    }


@pytest.fixture
def base(tmp_path: Path, original: State) -> Path:
    save_file(original, tmp_path / "base.safetensors")
    return tmp_path / "base.safetensors"


def merged(base: Path, expected: Shapes, *loras: Path) -> State:
    weights = load_weights(base, loras, expected, CausalVideo.layouts(), disagreements)
    return {name: tensor.load() for name, tensor in weights.tensors.items()}


def by_diffusers(wan: torch.nn.Module, file: Path) -> State:
    """The weights after diffusers loaded and fused a LoRA."""
    model = deepcopy(wan)
    state, metadata = WanLoraLoaderMixin.lora_state_dict(
        str(file.parent), weight_name=file.name, return_lora_metadata=True, local_files_only=True
    )
    WanLoraLoaderMixin.load_lora_into_transformer(state, model, metadata=metadata)
    model.fuse_lora()
    return {
        name.replace(".base_layer", ""): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }


def names(down: str, up: str, module: Callable[[str], str]) -> Callable[[Pairs], State]:
    return lambda pairs: {
        f"{module(name)}.{part}": tensor.clone()
        for name, (a, b) in pairs.items()
        for part, tensor in ((down, a), (up, b))
    }


def with_alpha(write: Callable[[Pairs], State], alpha: float) -> Callable[[Pairs], State]:
    def written(pairs: Pairs) -> State:
        state = write(pairs)
        modules = {name.rsplit(".lora", 1)[0] for name in state}
        return state | {f"{module}.alpha": torch.tensor(alpha) for module in modules}

    return written


def lightx2v(pairs: Pairs) -> State:
    state = names("lora_down.weight", "lora_up.weight", "diffusion_model.{}".format)(pairs)
    torch.manual_seed(4)
    biases = {f"{module}.diff_b": torch.randn(len(b)) for module, (_, b) in pairs.items()}
    whole = {"head.head.diff": torch.randn(16, 12), "head.head.diff_b": torch.randn(16)}
    norms = {f"blocks.{i}.norm3.diff": torch.zeros(12) for i in range(2)}
    return state | {f"diffusion_model.{name}": t for name, t in (biases | whole | norms).items()}


def diffusers_name(module: str) -> str:
    from vidc.exporters.parts.causal_wan.names import canonical_name

    return canonical_name(module)


FORMS: dict[str, Callable[[Pairs], State]] = {
    "diffusers": names(
        "lora_A.weight", "lora_B.weight", lambda m: f"transformer.{diffusers_name(m)}"
    ),
    "diffusers with a bias": lambda pairs: (
        FORMS["diffusers"](pairs)
        | {
            f"transformer.{diffusers_name(m)}.lora_B.bias": torch.arange(float(len(b)))
            for m, (_, b) in pairs.items()
        }
    ),
    "ai-toolkit": names("lora_A.weight", "lora_B.weight", "diffusion_model.{}".format),
    "kohya": with_alpha(
        names("lora_down.weight", "lora_up.weight", "diffusion_model.{}".format), 3.0
    ),
    "musubi": with_alpha(
        names(
            "lora_down.weight",
            "lora_up.weight",
            lambda m: "lora_unet_" + m.replace(".", "_"),
        ),
        2.0,
    ),
    "LightX2V": lightx2v,
}


@pytest.mark.parametrize("form", FORMS)
def test_equal_to_diffusers(
    form: str, tmp_path: Path, base: Path, wan: torch.nn.Module, pairs: Pairs, expected: Shapes
) -> None:
    file = tmp_path / "lora.safetensors"
    state = FORMS[form](pairs)
    save_file(state, file)
    found, want = merged(base, expected, file), by_diffusers(wan, file)
    assert found.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-5)
    changed = sum(not torch.equal(found[name], wan.state_dict()[name]) for name in found)
    assert changed == {"LightX2V": 42, "diffusers with a bias": 40}.get(form, 20)


def plain(base: State, pairs: Pairs, scale: float) -> State:
    return {f"{m}.weight": base[f"{m}.weight"] + scale * b @ a for m, (a, b) in pairs.items()}


def config(**settings: object) -> dict[str, str]:
    return {"lora_adapter_metadata": json.dumps({"r": RANK, "lora_alpha": 8, **settings})}


@pytest.mark.parametrize(
    ("header", "scale"),
    [
        ({}, 1.0),
        ({"lora_alpha": "16", "rank": "4"}, 4.0),
        ({"network_alpha": "8.0"}, 2.0),
        ({"alpha": "2"}, 0.5),
        ({"ss_network_alpha": "2", "ss_network_dim": "4"}, 0.5),
        ({"ss_network_alpha": "2", "ss_network_dim": "Dynamic"}, 0.5),
        ({"ss_network_alpha": "None", "use_dora": "False"}, 1.0),
        ({"transformer.lora_alpha": "2", "transformer.r": "4"}, 0.5),
        (config(), 2.0),
        (config(rank_pattern={"q": 8}, r=16), 2.0),
        ({"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 2})}, 0.5),
    ],
)
def test_settings_in_the_header(
    header: dict[str, str],
    scale: float,
    tmp_path: Path,
    base: Path,
    original: State,
    pairs: Pairs,
    expected: Shapes,
) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(FORMS["ai-toolkit"](pairs), file, metadata=header | {"format": "pt"})
    found = merged(base, expected, file)
    for name, tensor in plain(original, pairs, scale).items():
        torch.testing.assert_close(found[diffusers_name(name)], tensor, rtol=1e-5, atol=1e-5)


def test_diffusers_own_header(
    tmp_path: Path, base: Path, wan: torch.nn.Module, pairs: Pairs, expected: Shapes
) -> None:
    import peft

    model = deepcopy(wan)
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=6, target_modules=["to_q", "net.2"]))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_()
    model.save_lora_adapter(tmp_path, weight_name="lora.safetensors")
    model.fuse_lora()
    want = {n.replace(".base_layer", ""): t for n, t in model.state_dict().items()}
    for name, tensor in merged(base, expected, tmp_path / "lora.safetensors").items():
        torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("header", "code", "named"),
    [
        ({"lora_alpha": "much"}, "VIDC-LORA-FORMAT", "'much'"),
        ({"lora_alpha": "nan"}, "VIDC-LORA-FORMAT", "nan"),
        ({"lora_alpha": "2", "network_alpha": "4"}, "VIDC-LORA-FORMAT", "network_alpha is 4"),
        ({"lora_adapter_metadata": "{"}, "VIDC-LORA-FORMAT", "JSONDecodeError"),
        ({"lora_adapter_metadata": "[]"}, "VIDC-LORA-FORMAT", "TypeError"),
        ({"lora_alpha": "2", "rank": "8"}, "VIDC-LORA-FORMAT", "says rank 8, but"),
        ({"use_rslora": "True"}, "VIDC-LORA-KIND", "use_rslora"),
        (config(use_dora=True), "VIDC-LORA-KIND", "use_dora"),
        (config(alpha_pattern={"q": 2}), "VIDC-LORA-KIND", "alpha_pattern"),
    ],
)
def test_refuses_settings_in_the_header(
    header: dict[str, str],
    code: str,
    named: str,
    tmp_path: Path,
    base: Path,
    pairs: Pairs,
    expected: Shapes,
) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(FORMS["ai-toolkit"](pairs), file, metadata=header)
    with pytest.raises(BuildError) as caught:
        merged(base, expected, file)
    assert caught.value.code == code
    assert named in caught.value.message
    assert str(file) in caught.value.message


def test_config_of_another_adapter_is_not_read(
    tmp_path: Path, base: Path, original: State, pairs: Pairs, expected: Shapes
) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    state = FORMS["ai-toolkit"](pairs)
    for name in ("adapter_model.safetensors", "other.safetensors"):
        save_file(state, folder / name)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    assert lora_files(folder / "other.safetensors") == (folder / "other.safetensors",)
    for name, scale in (("adapter_model.safetensors", 2.0), ("other.safetensors", 1.0)):
        found = merged(base, expected, folder / name)
        for module, tensor in plain(original, pairs, scale).items():
            torch.testing.assert_close(found[diffusers_name(module)], tensor, rtol=1e-5, atol=1e-5)
    (folder / "adapter_model.safetensors").rename(folder / "third.safetensors")
    with pytest.raises(BuildError, match="nothing says whose it is"):
        merged(base, expected, folder / "other.safetensors")


def test_header_and_config_that_contradict_each_other(
    tmp_path: Path, base: Path, pairs: Pairs, expected: Shapes
) -> None:
    folder = tmp_path / "lora"
    folder.mkdir()
    save_file(
        FORMS["ai-toolkit"](pairs), folder / "lora.safetensors", metadata={"lora_alpha": "16"}
    )
    (folder / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": 8}))
    with pytest.raises(BuildError, match="says alpha 16"):
        merged(base, expected, folder / "lora.safetensors")


@pytest.mark.parametrize(
    ("state", "changed"),
    [
        ({"time_projection.1.lora_A": (2, 12), "time_projection.1.lora_B": (72, 2)}, "time_proj"),
        ({"head.head.lora_A": (2, 12), "head.head.lora_B": (16, 2)}, "proj_out"),
        ({"lora_unet_head_head.lora_down": (2, 12), "lora_unet_head_head.lora_up": (16, 2)}, "out"),
        (
            {
                "patch_embedding.lora_down": (2, 4, 1, 2, 2),
                "patch_embedding.lora_up": (12, 2, 1, 1, 1),
            },
            "patch_embedding.weight",
        ),
    ],
)
def test_lora_of_one_module_outside_the_blocks(
    state: dict[str, tuple[int, ...]],
    changed: str,
    tmp_path: Path,
    base: Path,
    canonical: State,
    expected: Shapes,
) -> None:
    tensors = {f"{name}.weight": torch.randn(shape) for name, shape in state.items()}
    save_file(tensors, tmp_path / "lora.safetensors")
    found = merged(base, expected, tmp_path / "lora.safetensors")
    (name,) = (name for name in found if not torch.equal(found[name], canonical[name]))
    assert changed in name
    down, up = (tensors[f"{name}.weight"].flatten(1) for name in state)
    want = canonical[name] + (up @ down).reshape(canonical[name].shape)
    torch.testing.assert_close(found[name], want)


def test_modulation_and_norm_of_lightx2v(
    tmp_path: Path, base: Path, original: State, canonical: State, expected: Shapes
) -> None:
    targets = {
        "blocks.0.diff_m": "blocks.0.modulation",
        "head.diff_m": "head.modulation",
        "blocks.1.norm3.diff": "blocks.1.norm3.weight",
        "blocks.1.norm3.diff_b": "blocks.1.norm3.bias",
    }
    state = {f"diffusion_model.{n}": torch.randn_like(original[t]) for n, t in targets.items()}
    save_file(state, tmp_path / "lora.safetensors")
    found = merged(base, expected, tmp_path / "lora.safetensors")
    for name, target in targets.items():
        want = original[target] + state[f"diffusion_model.{name}"]
        torch.testing.assert_close(found[diffusers_name(target)], want)
    assert sum(not torch.equal(found[name], canonical[name]) for name in found) == 4


def test_several_loras_are_summed_before_they_are_rounded(
    tmp_path: Path, original: State, pairs: Pairs, expected: Shapes
) -> None:
    base = tmp_path / "base.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in original.items()}, base)
    for name, form in (("one", "kohya"), ("two", "diffusers")):
        save_file(FORMS[form](pairs), tmp_path / f"{name}.safetensors")
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    found = merged(base, expected, *files)
    held = {n: t.load().float() for n, t in read_checkpoint(base).tensors.items()}
    for name, tensor in plain(held, pairs, 3.0 / RANK + 1.0).items():
        torch.testing.assert_close(found[diffusers_name(name)], tensor.bfloat16())


def test_names_of_another_kind_of_model(tmp_path: Path, base: Path, expected: Shapes) -> None:
    name = "lora_unet_down_blocks_1_attentions_0_proj_in"
    state = {
        f"{name}.lora_down.weight": torch.zeros(2, 12),
        f"{name}.lora_up.weight": torch.zeros(12, 2),
    }
    save_file(state, tmp_path / "lora.safetensors")
    with pytest.raises(BuildError) as caught:
        merged(base, expected, tmp_path / "lora.safetensors")
    assert caught.value.code == "VIDC-LORA-MISMATCH"
    assert "down_blocks_1_attentions_0_proj_in" in caught.value.message
