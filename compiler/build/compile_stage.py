"""Stages that compile engines and the kernels they call."""

from vidc.compiler.backends import backend
from vidc.compiler.backends.tensorrt.limits import limits
from vidc.compiler.build.device_memory import compile_bytes
from vidc.compiler.build.quantize_stage import graph_stage_name
from vidc.compiler.build.work import Work, runner
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.stage import Input, Stage
from vidc.compiler.store.versions import versions
from vidc.exporters.models import PRECISIONS
from vidc.plugins.signature import DTYPE_NAMES


def anywhere(settings: Settings) -> bool:
    """Whether engines for a GPU are compiled on any machine."""
    return settings.target.is_gpu and backend(settings.backend).anywhere(settings.target)


def compile_work(settings: Settings, group: str) -> Work:
    """What the stages do that compile a group's components."""
    return Work(
        ("vidc.compiler.build.compile_run", f"vidc.compiler.backends.{settings.backend}.backend"),
        {"precision": settings.precision[group], **limits(settings)},
    )


def compile_stage(settings: Settings, name: str, group: str) -> Stage:
    """The stage that makes a component's engine."""
    chosen, target = backend(settings.backend), settings.target
    work = compile_work(settings, group)
    return Stage(
        name=f"compile:{name}",
        run=runner(
            "compile",
            component=name,
            backend_name=settings.backend,
            target=target,
            **limits(settings),
        ),
        entries=work.entries,
        config=work.config,
        inputs=(
            Input(graph_stage_name(settings, name)),
            *(Input(stage) for stage in kernels(settings) if group == "transformer"),
        ),
        tools=dict(chosen.tools(target)),
        target=target.to_json(),
        device_bytes=0 if anywhere(settings) else compile_bytes(settings, name),
    )


def kernels(settings: Settings) -> dict[str, str]:
    """The stages that compile the kernels of the backend, with what each one compiles."""
    wanted = backend(settings.backend).kernels(settings.target)
    return {f"kernel:{kernel}": kernel for kernel in wanted}


def kernel_stage(settings: Settings, stage: str) -> Stage:
    """The stage that compiles one of ``kernels``."""
    work = kernel_work(settings, stage)
    kernel = kernels(settings)[stage]
    return Stage(
        name=stage,
        run=runner("kernel", kernel=kernel, **work.config),
        entries=work.entries,
        config=work.config,
        tools=versions("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", extra="cuda"),
    )


def kernel_work(settings: Settings, stage: str) -> Work:
    """What a stage of ``kernels`` does."""
    module = f"vidc.compiler.backends.aoti.kernels.{kernels(settings)[stage]}"
    return Work(
        ("vidc.compiler.build.kernel_run", module),
        {
            "dtype": DTYPE_NAMES[PRECISIONS[settings.precision["transformer"]]],
            "head_dim": settings.model.transformer.head_dim,
        },
    )
