"""A bundle whose engines are PyTorch: a checkpoint's weights by the build's own way to them."""

from dataclasses import replace
from pathlib import Path

import torch

from vidc.compiler.build.load import Load
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.program import program_spec
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate.reference import eager_engines
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.runtime.bundle import Bundle
from vidc.runtime.graphs import Runners
from vidc.runtime.programs import causal_video as program
from vidc.runtime.programs.base import Resources
from vidc.runtime.text import TextEncoder


def eager_bundle(
    config: CausalVideo, checkpoint: Path, folder: Path, device: str = "cpu"
) -> tuple[CausalVideo, Bundle]:
    """The model that a diffusers folder with a text encoder makes of ``config``, in float32.

    What is loaded goes into ``folder``.
    """
    plain = replace(config, text_encoder=None)
    model, sources = SourceOptions(checkpoint).resolve(plain)
    files = {}
    for group, source in sources.checkpoints.items():
        (output := folder / group).mkdir()
        part = model.parts[group]
        tokenizer = sources.tokenizer if part.needs_tokenizer else None
        stage = Load(part, type(model), "fp32", source, tokenizer=tokenizer)
        stage.run(Workspace(output, {}, print))
        files[group] = output / weights_path(group)
    where = torch.device(device)
    engines = eager_engines(model, files, dict.fromkeys(files, "fp32"), where)
    words = (folder / program.TEXT_ENCODER / TOKENIZER).read_bytes()
    text = TextEncoder(engines.pop(program.TEXT_ENCODER), words, where)
    runners = Runners.on(where, captured=False)
    resources = Resources(program_spec(model), engines, where, runners, text)
    return model, Bundle(program.CausalVideo, resources)
