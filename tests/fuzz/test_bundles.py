"""Random mutations of bundles, their engines, portable folders and exported programs.

``pytest tests/fuzz -k load --fuzz-cases 2000 --fuzz-seed 7`` runs 2000 cases of each test that
``-k`` selects; ``--fuzz-bundle FOLDER`` mutates a built bundle in place of a small one.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fuzzed_bundles import (
    SIGNED_ALONE,
    OtherFramesError,
    Played,
    PlayedApart,
    damage_file,
    edit_document,
    forge_file,
    forge_manifest,
    nudge_manifest,
)
from fuzzing import Subject, run, run_without_files
from portable_folder import portable_document, write_folder
from small_bundle import save_bundle, write_recorded

from vidc.compiler.build.handed_over import open_portable
from vidc.compiler.build.handover import DOCUMENT_NAME
from vidc.compiler.build.place import refuse_code
from vidc.compiler.cli.inspect import command as inspect
from vidc.compiler.config.resolve import resolve
from vidc.exporters.program import save_program
from vidc.runtime.manifest import MANIFEST_NAME, read_manifest


@pytest.fixture(scope="module")
def bundle(request, tmp_path_factory):
    """The folder of a valid bundle."""
    given = request.config.getoption("--fuzz-bundle")
    if given is not None:
        return Path(given)
    folder = tmp_path_factory.mktemp("small") / "bundle"
    save_bundle(folder)
    return folder


@pytest.fixture
def fuzz(request, tmp_path):
    """Runs a subject's cases; returns how often each error code or result occurred."""

    def go(subject):
        cases, seed = (request.config.getoption(f"--fuzz-{name}") for name in ("cases", "seed"))
        outcome = run(subject, tmp_path, seed, range(cases))
        print(subject.name, dict(outcome.codes.most_common()))
        assert not outcome.failures, f"{len(outcome.failures)}:\n" + "\n".join(outcome.failures[:5])
        return outcome.codes

    return go


@pytest.fixture
def subject(bundle):
    """Makes a ``Subject`` whose valid files are the bundle."""

    def make(name, read, change):
        def copy(folder):
            shutil.copytree(bundle, folder, dirs_exist_ok=True)

        return Subject(name, copy, read, change)

    return make


def test_manifests_are_read_or_refused_with_a_code(fuzz, bundle):
    def make(folder):
        shutil.copy(bundle / MANIFEST_NAME, folder)

    def read(folder):
        assert read_manifest(folder).digest

    def change(folder, rng):
        return edit_document(folder / MANIFEST_NAME, rng)

    assert fuzz(Subject("manifest", make, read, change))["VIDC-BUNDLE-FIELD"]


def test_manifests_that_load_play_the_same_frames(fuzz, subject):
    assert fuzz(subject("load", Played(), nudge_manifest))["VIDC-BUNDLE-RECORD"]


def test_forged_records_hide_no_more_than_the_documentation_says(fuzz, subject):
    """The record is rewritten with the manifest, so only the other checks of ``load`` remain."""
    found = fuzz(subject("forged record", Played(*SIGNED_ALONE), forge_manifest))
    assert found["VIDC-BUNDLE-FIELD"]
    documented = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert all(f"`{name}`" in documented for name in SIGNED_ALONE)


def test_damaged_files_do_not_play(fuzz, subject):
    codes = fuzz(subject("damage", Played(), damage_file))
    assert codes.keys() <= {"VIDC-BUNDLE-ALTERED", "VIDC-BUNDLE-TRUNCATED"}


def test_damaged_files_of_the_right_digest_end_no_more_than_their_process(fuzz, subject):
    read = PlayedApart()
    try:
        fuzz(subject("forged file", read, forge_file))
    finally:
        read.close()


def test_damaged_files_are_inspected_or_refused_with_a_code(fuzz, subject):
    def read(folder):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".onnx", ".pt2", ".plan"):
                inspected(path)
        inspected(folder)

    fuzz(subject("inspect", read, forge_file))


def inspected(path):
    done = CliRunner().invoke(inspect, [str(path)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x * 2


def test_portable_folders_are_opened_or_refused_with_a_code(fuzz):
    def make(folder):
        settings = resolve("tiny", gpu="cpu", environ={})
        write_folder(portable_document(settings), folder)

    def change(folder, rng):
        return edit_document(folder / DOCUMENT_NAME, rng)

    subject = Subject("portable folder", make, open_portable, change)
    assert fuzz(subject)["VIDC-BUNDLE-FIELD"]


def test_pipes_in_a_portable_folder_are_not_waited_for(tmp_path):
    def make(folder):
        write_folder(portable_document(resolve("tiny", gpu="cpu", environ={})), folder)

    outcome = run_without_files(Subject("portable folder", make, open_portable), tmp_path)
    assert not outcome.failures
    assert "accepted" not in outcome.codes


def test_exported_programs_are_read_or_refused_with_a_code(fuzz):
    def make(folder):
        program = torch.export.export(Doubled(), (torch.ones(2),))
        save_program(program, folder / "program.pt2")

    def read(folder):
        inspected(folder / "program.pt2")
        refuse_code(folder / "program.pt2")

    fuzz(Subject("exported program", make, read))


def test_other_frames_are_reported(bundle, tmp_path):
    """``Played`` finds other frames of a bundle whose forged sampler no check of ``load`` finds."""
    other = shutil.copytree(bundle, tmp_path / "other")
    document = read_manifest(other)
    write_recorded(replace(document, spec=replace(document.spec, sigmas=(1.0, 0.5))), other)
    forgeable = Played("spec.sigmas")
    assert (forgeable(bundle), forgeable(other)) == ("same frames", "other frames: spec.sigmas")
    silent = Played()
    silent(bundle)
    with pytest.raises(OtherFramesError, match=r"spec\.sigmas"):
        silent(other)
