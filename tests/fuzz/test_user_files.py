"""Checkpoints, LoRAs, text encoders, calibrations, presets and recipes, mutated at random.

``pytest tests/fuzz/test_user_files.py --fuzz-cases 200 --fuzz-seed 7`` runs 200 of each subject.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import quantized
import torch
from fuzzing import Subject, run, run_without_files
from safetensors.torch import save_file
from tiny_umt5 import save_text_encoder, tiny_tokenizer, tiny_umt5
from torch import Tensor
from wan_download import save_longlive, save_wan

from vidc.compiler.config.presets import load_preset, preset_document
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.toml import to_toml
from vidc.compiler.quantize.artifact import read_calibration, write_calibration
from vidc.exporters.checkpoint.config_file import require_config, require_pipeline
from vidc.exporters.checkpoint.load import load_weights, lora_files
from vidc.exporters.checkpoint.read import checkpoint_files
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import disagreements, original_name
from vidc.exporters.parts.umt5.folder import open_text_encoder
from vidc.exporters.parts.umt5.tokenizer import tokenizer_json
from vidc.exporters.parts.umt5.weights import load_encoder_weights

RANK = 2


@cache
def model() -> CausalVideo:
    tables = load_preset("tiny").model.to_json()
    sizes = {"dim": 12, "ffn_dim": 14, "heads": 2, "layers": 1, "freq_dim": 8, "text_dim": 32}
    return CausalVideo.from_tables(
        {"model": tables["model"] | sizes, **{n: tables[n] for n in ("vae", "stream", "sampler")}}
    )


@cache
def shapes() -> dict[str, tuple[int, ...]]:
    return model().transformer_part.shapes()


@cache
def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in shapes().items()}


def load(path: Path, *loras: Path) -> None:
    checkpoint_files(path)
    loaded = load_weights(path, loras, shapes(), CausalVideo.layouts(), disagreements)
    for tensor in loaded.tensors.values():
        tensor.load()
    json.dumps(loaded.provenance)


def save_plain(folder: Path) -> None:
    save_file({original_name(n): t for n, t in weights().items()}, folder / "m.safetensors")


def save_scaled(folder: Path) -> None:
    state = dict(weights())
    for name, tensor in weights().items():
        if "attn" in name and tensor.ndim == 2:
            scale = tensor.abs().amax(1, keepdim=True) / 448
            state[name] = (tensor / scale).to(torch.float8_e4m3fn)
            state[f"{name.removesuffix('.weight')}.weight_scale"] = scale
    state["scaled_fp8"] = torch.empty(2, dtype=torch.float8_e4m3fn)
    save_file({f"model.diffusion_model.{n}": t for n, t in state.items()}, folder / "m.safetensors")


def save_torch(folder: Path) -> None:
    save_longlive(folder / "models", weights(), RANK)


def read_torch(folder: Path) -> None:
    load(folder / "models" / "longlive_base.pt", folder / "models" / "lora.pt")


def save_texts(folder: Path) -> None:
    save_text_encoder(folder, tiny_umt5(), tiny_tokenizer())


def save_legacy(folder: Path) -> None:
    state = {"model": weights(), "step": 3, "sizes": [1, (2.5, None)]}
    torch.save(state, folder / "m.pt", _use_new_zipfile_serialization=False)


def save_pipeline(folder: Path) -> None:
    part = folder / "transformer"
    part.mkdir()
    names = list(weights())
    shards = {"m-1.safetensors": names[::2], "m-2.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: weights()[name] for name in held}, part / file)
    index = {name: file for file, held in shards.items() for name in held}
    document = {"metadata": {"total_size": 1}, "weight_map": index}
    (part / "m.safetensors.index.json").write_text(json.dumps(document))
    settings = model().transformer_part.config_settings["WanTransformer3DModel"]
    config = {name: value for name, value in settings.items() if value is not ...}
    config["_class_name"] = "WanTransformer3DModel"
    (part / "config.json").write_text(json.dumps(config))
    (folder / "scheduler").mkdir()
    for name, values in model().pipeline_settings.items():
        (folder / name).write_text(json.dumps(values))


def read_pipeline(folder: Path) -> None:
    require_pipeline(folder, model().pipeline_settings)
    require_config(folder / "transformer", model().transformer_part.config_settings)
    load(folder / "transformer")


def save_lora(folder: Path) -> None:
    save_plain(folder)
    (folder / "lora").mkdir()
    modules = [n.removesuffix(".weight") for n, t in weights().items() if t.ndim == 2]
    linears = [module for module in modules if module.startswith("blocks.")]
    down = {f"transformer.{m}.lora_A.weight": torch.randn(RANK, len(weights()[f"{m}.weight"][0]))
            for m in linears}  # fmt: skip
    up = {f"transformer.{m}.lora_B.weight": torch.randn(len(weights()[f"{m}.weight"]), RANK)
          for m in linears}  # fmt: skip
    metadata = {"lora_adapter_metadata": json.dumps({"r": RANK, "lora_alpha": 4})}
    save_file(down | up, folder / "lora" / "adapter_model.safetensors", metadata=metadata)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "target_modules": linears[:2]}
    (folder / "lora" / "adapter_config.json").write_text(json.dumps(config))
    alphas = {f"lora_unet_{original_name(m).replace('.', '_')}.alpha": torch.tensor(1.0)
              for m in linears}  # fmt: skip
    flat = {f"lora_unet_{original_name(name).replace('.', '_')}": name for name in linears}
    for name, module in flat.items():
        alphas[f"{name}.lora_down.weight"] = down[f"transformer.{module}.lora_A.weight"]
        alphas[f"{name}.lora_up.weight"] = up[f"transformer.{module}.lora_B.weight"]
    save_file(alphas, folder / "kohya.safetensors", metadata={"ss_network_dim": str(RANK)})


def read_lora(folder: Path) -> None:
    for lora in ("lora", "kohya.safetensors"):
        lora_files(folder / lora)
        load(folder / "m.safetensors", folder / lora)


def read_text(path: Path) -> None:
    found = open_text_encoder(path, 32)
    loaded = load_encoder_weights(found.checkpoint, found.config, CausalVideo.layouts())
    for tensor in loaded.tensors.values():
        tensor.load()
    tokenizer_json(found.tokenizer, found.config, 16)


def save_calibration(folder: Path) -> None:
    made = quantized.calibration(model())
    write_calibration(folder, made.document, made.tensors)


def save_preset(folder: Path) -> None:
    (folder / "p.toml").write_text(to_toml(preset_document(load_preset("longlive-1.3b"))))
    (folder / "q.toml").write_text('description = "x"\nextends = "tiny"\n[stream]\nwindow = 9\n')


def read_preset(folder: Path) -> None:
    for name in ("p.toml", "q.toml"):
        json.dumps(preset_document(load_preset(str(folder / name))))
        resolve(str(folder / name), gpu="cpu", environ={}).values()


def save_recipe(folder: Path) -> None:
    from vidc.compiler.config.recipe import recipe_toml

    for name in ("fp8", "int8-static"):
        (folder / f"{name}.toml").write_text(recipe_toml(load_recipe(name)))


def read_recipe(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        load_recipe(str(file)).rules()


SUBJECTS = (
    Subject("checkpoint", save_plain, lambda folder: load(folder / "m.safetensors")),
    Subject("scaled checkpoint", save_scaled, lambda folder: load(folder / "m.safetensors")),
    Subject("longlive files", save_torch, read_torch),
    Subject("legacy checkpoint", save_legacy, lambda folder: load(folder / "m.pt")),
    Subject("pipeline", save_pipeline, read_pipeline),
    Subject("LoRA", save_lora, read_lora),
    Subject("text encoder", save_texts, lambda folder: read_text(folder / "text_encoder")),
    Subject(
        "wan download",
        lambda folder: save_wan(folder / "wan", {}, tiny_umt5(), tiny_tokenizer()),
        lambda folder: read_text(folder / "wan"),
    ),
    Subject("calibration", save_calibration, lambda folder: read_calibration(folder, model())),
    Subject("preset", save_preset, read_preset),
    Subject("recipe", save_recipe, read_recipe),
)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_mutated_files_give_coded_errors(
    subject: Subject, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cases, seed = (request.config.getoption(f"--fuzz-{name}") for name in ("cases", "seed"))
    outcome = run(subject, tmp_path, seed, range(cases))
    print(subject.name, dict(outcome.codes.most_common()))
    assert not outcome.failures, f"{len(outcome.failures)}:\n" + "\n".join(outcome.failures[:5])
    # Otherwise the mutations miss what is read.
    assert set(outcome.codes) - {"accepted"}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_pipes_and_devices_are_neither_waited_for_nor_read_without_end(
    subject: Subject, tmp_path: Path
) -> None:
    outcome = run_without_files(subject, tmp_path)
    print(subject.name, dict(outcome.codes.most_common()))
    assert not outcome.failures, "\n".join(outcome.failures[:5])
    assert set(outcome.codes) - {"accepted"}


def test_harness_reports_errors_without_a_code(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "x.json").write_text('{"a": [1, 2]}')

    def read(folder: Path) -> object:
        return json.loads((folder / "x.json").read_bytes())["a"][1]

    outcome = run(Subject("planted", make, read), tmp_path, 1, range(40))
    assert any("KeyError: 'a'" in failure for failure in outcome.failures)
    assert outcome.failures[0].startswith("seed 1, planted, case ")
