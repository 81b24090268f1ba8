"""Validation passes on what was built, and fails on every planted fault, by name."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from vidc.compiler.cli import main
from vidc.compiler.validate.compare import hold_to_golden
from vidc.compiler.validate.gates import Where
from vidc.runtime.manifest import read_manifest


class Faulty:
    """An engine with a planted fault."""

    def __init__(self, engine, before=None, after=None):
        self.signature = engine.signature
        self._engine, self._before, self._after = engine, before, after

    def run(self, buffers, states):
        if self._before is not None:
            self._before(buffers, states)
        self._engine.run(buffers, states)
        if self._after is not None:
            self._after(buffers, states)


@pytest.fixture
def judge(project, bundle, golden):
    precisions = {n: e.precision for n, e in read_manifest(project.bundle).engines.items()}

    def hold(rollout=True, **faults):
        scenario = replace(golden.scenario, rollout=rollout)
        engines = dict(bundle.engines)
        for name, fault in faults.items():
            engines[name] = Faulty(engines[name], **fault)
        held_to = replace(golden, scenario=scenario)
        return hold_to_golden(held_to, bundle.stream, engines, precisions, bundle.device)

    return hold


def failures(comparison) -> dict[Where, set[str]]:
    failed = [gate for gate in comparison.gates if not gate.passed]
    return {where: {g.component for g in failed if g.where is where} for where in Where}


def test_a_bundle_passes(judge):
    comparison = judge()
    assert failures(comparison) == {where: set() for where in Where}
    assert {gate.where for gate in comparison.gates} == set(Where)
    rollout = [gate for gate in comparison.gates if gate.where is Where.ROLLOUT]
    assert [gate.block for gate in rollout] == [*range(8), None]


def shift(name, by):
    def apply(buffers, states):
        buffers[name].add_(by)

    return {"before": apply}


def stale_key(buffers, states):
    # One token of the newest block keeps the key of the block before.
    ring = states["ring.k.0"]
    ring[:, 0] = ring[:, 1]


def nan_output(buffers, states):
    for output in buffers.outputs.values():
        output[0] = torch.nan


def forgets_to_write(buffers, states):
    for output in buffers.outputs.values():
        output.fill_(torch.nan)


@pytest.mark.parametrize(
    ("component", "fault"),
    [
        ("denoise", shift("position", 1)),
        ("denoise", shift("position", -1)),
        ("kv_update", shift("position", 1)),
        ("recache_6", shift("position", 1)),
        # Recomputes a wrapped ring: its window is 8 and its sink 3.
        ("recache_5", shift("position", 1)),
        ("recache_5", shift("position", -6)),
        ("recache_5", shift("valid_length", -1)),
        ("denoise", shift("valid_length", -1)),
        ("kv_update", shift("valid_length", -1)),
        ("kv_update", {"after": stale_key}),
        ("denoise", shift("timestep", 10.0)),
        ("kv_update", shift("timestep", 10.0)),
        ("denoise", shift("rope_cos", 0.01)),
        ("text_kv", shift("text_embeds", 0.01)),
        ("denoise", {"after": nan_output}),
        ("denoise", {"after": forgets_to_write}),
        ("vae_decode", {"after": nan_output}),
        ("vae_decode", shift("latent", 0.01)),
        ("vae_decode_first", shift("latent", 0.01)),
        ("vae_encode", shift("frames", 0.01)),
        ("vae_encode_first", shift("frames", 0.01)),
    ],
)
def test_a_planted_fault_is_caught(judge, component, fault):
    assert component in failures(judge(rollout=False, **{component: fault}))[Where.COMPONENT]


def test_a_fault_in_the_cache_shows_in_the_rollout(judge):
    failed = failures(judge(kv_update={"after": stale_key}))
    assert failed[Where.ROLLOUT]


def test_a_fault_in_decoding_shows_in_the_pixels(judge):
    failed = failures(judge(vae_decode=shift("latent", 0.1)))
    assert not failed[Where.ROLLOUT]
    assert failed[Where.PIXELS]


@pytest.mark.parametrize("component", ["text_kv", "vae_decode_first"])
def test_a_state_that_is_not_written_is_caught(judge, bundle, component):
    signature = bundle.engines[component].signature

    def erase(buffers, states):
        for spec in signature.states:
            states[spec.name].fill_(torch.nan)

    failed = failures(judge(rollout=False, **{component: {"after": erase}}))
    assert component in failed[Where.COMPONENT]


def test_a_component_without_an_engine_fails(project, bundle, golden):
    precisions = {"denoise": "fp32", "image_encoder": "fp32"}
    comparison = hold_to_golden(golden, bundle.stream, bundle.engines, precisions, bundle.device)
    assert failures(comparison)[Where.COMPONENT] == {"image_encoder"}


@pytest.fixture
def vidc(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["validate", *map(str, arguments)])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_a_report_without_a_place_is_refused_before_anything_is_loaded(vidc, project, tmp_path):
    (tmp_path / "file").write_text("")
    for page in (tmp_path / "nowhere" / "r.html", tmp_path, tmp_path / "file" / "r.html"):
        status, out, err = vidc(project.bundle, "--report", page)
        assert (status, out) == (2, "")
        assert "VIDC-VALIDATE-REPORT" in err
        assert "loading" not in err


def test_figures_are_printed_though_the_report_cannot_be_written(vidc, project, tmp_path):
    page = tmp_path / "r.html"
    page.symlink_to("/dev/full")
    status, out, err = vidc(project.bundle, "--report", page, "--json")
    assert (status, json.loads(out)["passed"]) == (2, True)
    assert "VIDC-VALIDATE-REPORT" in err


def test_a_text_encoder_of_a_checkpoint_must_be_given(vidc, project, tmp_path):
    pipeline = tmp_path / "pipeline"
    shutil.copytree(project.pipeline, pipeline, ignore=shutil.ignore_patterns("text_encoder"))
    status, out, err = vidc(
        project.bundle, "--report", tmp_path / "r.html", "--checkpoint", pipeline
    )
    assert (status, out) == (2, "")
    assert "VIDC-BUILD-SOURCES" in err
    assert "text encoder" in err
