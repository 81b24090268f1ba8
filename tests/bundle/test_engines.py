"""Every engine against eager: call by call, and over 8 blocks with a prompt switch."""

import pytest
import small_taehv

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.validate.check import validate
from vidc.compiler.validate.golden import Golden
from vidc.runtime import load
from vidc.runtime.manifest import read_manifest


@pytest.mark.parametrize(
    ("backend", "precision", "decoder", "component_limit", "rollout_limit"),
    [
        pytest.param("onnxruntime", "fp16", "wan", 5e-3, 5e-2, marks=pytest.mark.deep),
        # tests/runtime/engines compiles both decoders' blocks by AOTInductor, the VAE's slowly.
        ("aoti", "fp32", "taehv", 1e-4, 1e-3),
        pytest.param("aoti", "fp32", "wan", 1e-4, 1e-3, marks=pytest.mark.deep),
        pytest.param("aoti", "bf16", "wan", 3e-2, 1.5e-1, marks=pytest.mark.deep),
    ],
)
def test_engines_compute_what_eager_computes(
    project, taehv, tmp_path, backend, precision, decoder, component_limit, rollout_limit
):
    # Half precision on a CPU is a matter of minutes in the VAE's convolutions.
    choices = ["precision.vae=fp32"] if precision == "fp16" else []
    parts = {}
    if decoder == "taehv":
        choices, parts = ["vae.kind=taehv", *small_taehv.SIZES], {"taehv": taehv}
    settings, sources = project.resolve(*choices, parts=parts, backend=backend, precision=precision)
    built = whole(settings, sources).run(tmp_path / "bundle", project.cache, LineProgress())
    require_eager(built.output, component_limit, rollout_limit)


def test_engines_of_the_project_compute_what_eager_computes(project):
    require_eager(project.bundle, 1e-4, 1e-3)


def require_eager(bundle, component_limit, rollout_limit):
    """Holds each component and each latent of a rollout to a relative L2."""
    document = validate(
        read_manifest(bundle), load(bundle, verify="full"), Golden.load(bundle)
    ).to_json()
    assert document["passed"]
    components = {
        gate["component"]: gate["value"]
        for gate in document["gates"]
        if (gate["where"], gate["metric"]) == ("component", "relative_l2")
    }
    rollout = [row["relative_l2"] for row in document["rollout"]]
    assert len(components) == 10
    assert max(components.values()) < component_limit
    assert len(rollout) == 8
    assert max(rollout) < rollout_limit
    assert [row["block"] for row in document["rollout"] if row["switched"]] == [5]
