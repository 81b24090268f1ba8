"""Stages that write the weights of a group."""

from pathlib import Path

from vidc.compiler.build.sources import Sources
from vidc.compiler.build.work import LIBRARIES, Work, group_sizes, labeled, runner, text_len
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.versions import versions
from vidc.exporters.checkpoint import checkpoint_files, lora_files
from vidc.exporters.text_encoder.tokenizer import is_sentencepiece, tokenizer_files
from vidc.plugins.names import TOKENIZER, weights_path


def load_stage(settings: Settings, sources: Sources, group: str) -> Stage:
    """The stage that writes the weights of a group.

    Raises:
        VidcError: what ``Sources.weights`` and ``checkpoint_files`` raise.
    """
    weights = sources.weights(group)
    lora = sources.lora if group == "transformer" else None
    tokenizer = sources.tokenizer if group == "text_encoder" else None
    files: dict[str, Path] = {}
    libraries = LIBRARIES[group]
    if isinstance(weights, Path):
        files |= labeled("checkpoint", checkpoint_files(weights))
    if lora is not None:
        files |= labeled("lora", lora_files(lora))
    if tokenizer is not None:
        files |= labeled("tokenizer", tokenizer_files(tokenizer))
        libraries += ("sentencepiece", "protobuf") if is_sentencepiece(tokenizer) else ()
    work = load_work(settings, group)
    return Stage(
        name=f"load:{group}",
        run=runner(
            "load", config=settings.model, group=group, precision=settings.precision[group],
            weights=weights, lora=lora, tokenizer=tokenizer,
        ),
        entries=work.entries,
        config={**work.config, "seed": weights if isinstance(weights, int) else None},
        files=files,
        tools=versions("torch", *libraries),
    )  # fmt: skip


def load_work(settings: Settings, group: str) -> Work:
    """What the stage of ``load_stage`` does."""
    return Work(
        ("vidc.compiler.build.load_run",),
        {
            "sizes": group_sizes(settings, group),
            "text_len": text_len(settings, group),
            "precision": settings.precision[group],
        },
    )


def weights_files(group: str) -> tuple[str, ...]:
    """What ``load`` writes of a group but for its description."""
    text = (TOKENIZER,) if group == "text_encoder" else ()
    return (weights_path(group), *text)
