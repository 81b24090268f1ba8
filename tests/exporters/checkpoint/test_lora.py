import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vidc.exporters.checkpoint.load import load_weights, lora_files
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import disagreements
from vidc.plugins.errors import BuildError

State = dict[str, Tensor]
Shapes = dict[str, torch.Size]

TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "net.0.proj", "net.2"]
QUERY = "blocks.0.self_attn.q"


@pytest.fixture(scope="module")
def adapted(wan: torch.nn.Module) -> tuple[State, State, peft.LoraConfig]:
    """A PEFT LoRA over every linear layer of the blocks: its tensors, and PEFT's own merge."""
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS)
    model = peft.get_peft_model(deepcopy(wan), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_()
    updates = {k: v.clone() for k, v in peft.get_peft_model_state_dict(model).items()}
    assert len(updates) == 2 * 2 * 10
    return updates, model.merge_and_unload().state_dict(), config


@pytest.fixture
def base(tmp_path: Path, original: State) -> Path:
    torch.save({"generator": {f"model.{n}": t for n, t in original.items()}}, tmp_path / "base.pt")
    return tmp_path / "base.pt"


def check(weights: dict[str, Tensor], merged: State, unmerged: State) -> None:
    assert weights.keys() == merged.keys()
    changed = 0
    for name, value in weights.items():
        assert (value - merged[name]).norm() <= 1e-6 * merged[name].norm()
        changed += not torch.equal(value, unmerged[name])
    assert changed == 20


@pytest.mark.parametrize("form", ["bare", "generator_lora", "adapter name", "original names"])
def test_equal_to_peft(
    form: str,
    tmp_path: Path,
    base: Path,
    adapted: tuple[State, State, peft.LoraConfig],
    canonical: State,
    original_names: dict[str, str],
    expected: Shapes,
) -> None:
    updates, merged, config = adapted
    folder = tmp_path / "lora"
    config.save_pretrained(folder)
    file = folder / "lora.pt"
    if form == "adapter name":
        updates = {
            n.replace("lora_A.weight", "lora_A.default.weight").replace(
                "lora_B.weight", "lora_B.default.weight"
            ): t
            for n, t in updates.items()
        }
    if form == "original names":
        old = {new.removesuffix(".weight"): old for old, new in original_names.items()}
        updates = {
            "base_model.model." + old[path].removesuffix("weight") + "lora_" + part: tensor
            for name, tensor in updates.items()
            for path, part in [name.removeprefix("base_model.model.").split(".lora_")]
        }
    sections = {"generator_lora": updates, "critic_lora": {}, "step": 1}
    torch.save(sections if form == "generator_lora" else updates, file)
    weights = load_weights(base, [file], expected, CausalVideo.layouts(), disagreements)
    check({n: t.load() for n, t in weights.tensors.items()}, merged, canonical)
    assert lora_files(file) == (file, folder / "adapter_config.json")
    wan_names = form == "original names"
    assert weights.provenance["loras"] == [
        {
            "files": ["lora.pt", "adapter_config.json"],
            "layout": "original Wan transformer"
            if wan_names
            else "diffusers WanTransformer3DModel",
            "section": "generator_lora" if form == "generator_lora" else None,
            "modules": 20,
            "ranks": [4],
            "scales": [2.0],
        }
    ]


def test_folder_that_peft_saved(
    tmp_path: Path,
    base: Path,
    adapted: tuple[State, State, peft.LoraConfig],
    canonical: State,
    expected: Shapes,
) -> None:
    updates, merged, config = adapted
    config.save_pretrained(tmp_path / "lora")
    save_file(updates, tmp_path / "lora" / "adapter_model.safetensors")
    weights = load_weights(
        base, [tmp_path / "lora"], expected, CausalVideo.layouts(), disagreements
    )
    check({n: t.load() for n, t in weights.tensors.items()}, merged, canonical)


def factors(path: str = QUERY, rank: int = 2, size: int = 12) -> State:
    torch.manual_seed(2)
    return {
        f"{path}.lora_A.weight": torch.randn(rank, size),
        f"{path}.lora_B.weight": torch.randn(size, rank),
    }


def merged_query(base: Path, updates: State, folder: Path, expected: Shapes) -> Tensor:
    (folder / "lora").mkdir(exist_ok=True)
    torch.save(updates, folder / "lora" / "lora.pt")
    weights = load_weights(
        base, [folder / "lora" / "lora.pt"], expected, CausalVideo.layouts(), disagreements
    )
    return weights.tensors["blocks.0.attn1.to_q.weight"].load()


@pytest.mark.parametrize(
    ("extra", "scale"),
    [
        ({}, 1.0),
        ({f"{QUERY}.alpha": torch.tensor(3)}, 1.5),
        ({f"{QUERY}.alpha": torch.ones(1)}, 0.5),
    ],
)
def test_alpha(
    tmp_path: Path, base: Path, original: State, expected: Shapes, extra: State, scale: float
) -> None:
    updates = factors()
    a, b = updates.values()
    result = merged_query(base, updates | extra, tmp_path, expected)
    torch.testing.assert_close(result, original[f"{QUERY}.weight"] + scale * b @ a)


def test_kohya_names(tmp_path: Path, base: Path, original: State, expected: Shapes) -> None:
    a, b = factors().values()
    prefix = f"diffusion_model.{QUERY}"
    updates = {
        f"{prefix}.lora_down.weight": a,
        f"{prefix}.lora_up.weight": b,
        f"{prefix}.alpha": torch.tensor(1.0),
    }
    result = merged_query(base, updates, tmp_path, expected)
    torch.testing.assert_close(result, original[f"{QUERY}.weight"] + 0.5 * b @ a)


def test_sum_in_float32_comes_back_in_the_base_dtype(
    tmp_path: Path, original: State, expected: Shapes
) -> None:
    state = {name: tensor.bfloat16() for name, tensor in original.items()}
    torch.save(state, tmp_path / "base.pt")
    updates = {name: tensor.bfloat16() for name, tensor in factors().items()}
    result = merged_query(tmp_path / "base.pt", updates, tmp_path, expected)
    a, b = (tensor.float() for tensor in updates.values())
    exact = (state[f"{QUERY}.weight"].float() + b @ a).bfloat16()
    assert result.dtype == torch.bfloat16
    assert (result != exact).sum() <= 2
    torch.testing.assert_close(result, exact)


def refuse(base: Path, updates: State, folder: Path, expected: Shapes, code: str) -> BuildError:
    with pytest.raises(BuildError) as caught:
        merged_query(base, updates, folder, expected)
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (lambda s: factors("blocks.7.self_attn.q"), "VIDC-LORA-MISMATCH", "blocks.7.self_attn.q"),
        (lambda s: factors("blocks.0.norm1"), "VIDC-LORA-MISMATCH", "blocks.0.norm1"),
        (
            lambda s: factors(size=10),
            "VIDC-LORA-MISMATCH",
            "weight is [12, 12], its update [10, 10]",
        ),
        (lambda s: factors(rank=0), "VIDC-LORA-FORMAT", "A [0, 12] and B [12, 0]"),
        (
            lambda s: s | {f"{QUERY}.lora_B.weight": torch.zeros(12, 3)},
            "VIDC-LORA-FORMAT",
            "A [2, 12] and B [12, 3]",
        ),
        (
            lambda s: {n: t for n, t in s.items() if "lora_A" in n},
            "VIDC-LORA-FORMAT",
            f"{QUERY} has only down",
        ),
        (
            lambda s: {n: t for n, t in s.items() if "lora_B" in n},
            "VIDC-LORA-FORMAT",
            f"{QUERY} has only up",
        ),
        (lambda s: {"head.head.weight": torch.zeros(2)}, "VIDC-LORA-FORMAT", "no LoRA tensors"),
        (
            lambda s: s | {f"{QUERY}.lora_A.bias": torch.zeros(12)},
            "VIDC-LORA-FORMAT",
            "lora_A.bias",
        ),
        (
            lambda s: s | {"blocks.1.self_attn.q.lora_B.bias": torch.zeros(12)},
            "VIDC-LORA-FORMAT",
            "has only bias of the pair",
        ),
        (
            lambda s: s | {f"{QUERY}.diff": torch.zeros(12, 12)},
            "VIDC-LORA-FORMAT",
            "has diff and another update",
        ),
        (
            lambda s: s | {"text_model.encoder.layers.0.diff": torch.zeros(12, 12)},
            "VIDC-LORA-MISMATCH",
            "1 of its modules do not exist in the model (text_model.encoder.layers.0)",
        ),
        (
            lambda s: s | {f"{QUERY}.lora_A.second.weight": torch.zeros(2, 12)},
            "VIDC-LORA-FORMAT",
            "several adapters",
        ),
        (
            lambda s: s | {f"{QUERY}.alpha": torch.tensor(float("nan"))},
            "VIDC-LORA-FORMAT",
            f"{QUERY}.alpha",
        ),
        (
            lambda s: s | {f"{QUERY}.lora_magnitude_vector.weight": torch.zeros(12)},
            "VIDC-LORA-KIND",
            "DoRA",
        ),
        (lambda s: s | {f"{QUERY}.dora_scale": torch.zeros(12, 1)}, "VIDC-LORA-KIND", "DoRA"),
        (lambda s: {f"{QUERY}.lokr_w1": torch.zeros(2, 2)}, "VIDC-LORA-KIND", "LoKr"),
        (lambda s: {f"{QUERY}.hada_w1_a": torch.zeros(2, 2)}, "VIDC-LORA-KIND", "LoHa"),
        (lambda s: {f"{QUERY}.oft_blocks": torch.zeros(2, 2)}, "VIDC-LORA-KIND", "OFT"),
        (
            lambda s: s | {f"{QUERY}.lora_A.weight": torch.full((2, 12), float("inf"))},
            "VIDC-CHECKPOINT-NONFINITE",
            f"{QUERY}.lora_A.weight holds 24 of 24",
        ),
        (
            lambda s: {name: tensor.to(torch.int8) for name, tensor in s.items()},
            "VIDC-CHECKPOINT-DTYPE",
            "lora_A.weight is torch.int8",
        ),
    ],
)
def test_refused(
    tmp_path: Path,
    base: Path,
    expected: Shapes,
    change: Callable[[State], State],
    code: str,
    named: str,
) -> None:
    error = refuse(base, change(factors()), tmp_path, expected, code)
    assert named in error.message
    assert "lora.pt" in error.message


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"use_rslora": True}, "VIDC-LORA-KIND", "use_rslora"),
        ({"use_dora": True}, "VIDC-LORA-KIND", "use_dora"),
        ({"alpha_pattern": {"q": 3}}, "VIDC-LORA-KIND", "alpha_pattern"),
        ({"peft_type": "LOHA"}, "VIDC-LORA-KIND", "LOHA"),
        ({"init_lora_weights": "pissa"}, "VIDC-LORA-KIND", "pissa"),
        ({"r": 8}, "VIDC-LORA-FORMAT", "rank 8, but"),
        ({"lora_alpha": None}, "VIDC-LORA-FORMAT", "TypeError"),
        ({"lora_alpha": float("nan")}, "VIDC-LORA-FORMAT", "lora_alpha"),
    ],
)
def test_config_refused(
    tmp_path: Path,
    base: Path,
    expected: Shapes,
    settings: dict[str, object],
    code: str,
    named: str,
) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": False} | settings
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(config))
    error = refuse(base, factors(), tmp_path, expected, code)
    assert named in error.message
    assert "adapter_config.json" in error.message


def test_config_that_is_not_json(tmp_path: Path, base: Path, expected: Shapes) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("[]")
    refuse(base, factors(), tmp_path, expected, "VIDC-LORA-FORMAT")
