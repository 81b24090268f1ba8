"""Loading of a small bundle under wrong arguments and limits of the system."""

import gc
import os
import resource
import shutil
from dataclasses import replace

import pytest
from small_bundle import save_bundle, write_recorded

from vidc.runtime import GateError, UsageError, VidcError, integrity, load
from vidc.runtime.engines.onnxruntime import OnnxRuntimeEngine
from vidc.runtime.manifest import read_manifest
from vidc.runtime.weights import Weights


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "bundle"
    save_bundle(folder)
    load(folder).close()
    return folder


WRONG = {
    "number": lambda bundle: load(5),
    "nothing": lambda bundle: load(None),
    "bytes": lambda bundle: load(b"bundle"),
    "null": lambda bundle: load("a\0b"),
    "surrogate": lambda bundle: load("a\ud800"),
    "long": lambda bundle: load("a" * 5000),
    "trust": lambda bundle: load(bundle, trust=5),
    "trusted": lambda bundle: load(bundle, trust=[5]),
    "no key": lambda bundle: load(bundle, trust=[]),
    "null key": lambda bundle: load(bundle, trust="a\0b"),
    "digest": lambda bundle: load(bundle, digest=5),
    "verify": lambda bundle: load(bundle, verify=["full"]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arguments_of_any_wrong_kind_are_coded(bundle, wrong):
    with pytest.raises((UsageError, GateError)) as caught:
        WRONG[wrong](bundle)
    assert caught.value.hint


def test_too_few_descriptors_are_not_called_a_change(bundle):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used, refusals = len(os.listdir("/proc/self/fd")), set()
    try:
        for spare in range(2, 40):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, limits[1]))
            try:
                load(bundle).close()
            except VidcError as error:
                refusals.add((error.code, "Too many open files" in error.message))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert ("VIDC-BUNDLE-UNREADABLE", True) in refusals
    assert "VIDC-BUNDLE-CHANGED" not in {code for code, _ in refusals}


def test_a_bundle_that_failed_its_validation_is_refused_though_the_record_agrees(bundle, tmp_path):
    failed = shutil.copytree(bundle, tmp_path / "failed")
    document = read_manifest(failed)
    write_recorded(replace(document, validation=replace(document.validation, passed=False)), failed)
    with pytest.raises(GateError, match="VIDC-BUNDLE-UNVALIDATED"):
        load(failed)


def test_a_refused_bundle_leaves_no_engine_in_memory(bundle, tmp_path):
    damaged = shutil.copytree(bundle, tmp_path / "damaged")
    (damaged / "report.html").write_text("<HTML>")
    before = _engines()
    with pytest.raises(GateError, match="VIDC-BUNDLE-ALTERED") as caught:
        load(damaged)
    assert caught.tb is not None  # Its frames are still there.
    assert len(_engines()) == len(before)


def _engines():
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is OnnxRuntimeEngine]


def test_an_interrupt_ends_the_hashing(bundle, monkeypatch):
    ended = []

    def hash_until_stopped(files, entries, mode, stop):
        ended.append(stop.wait(60))

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(integrity, "compare_files", hash_until_stopped)
    monkeypatch.setattr(Weights, "__init__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(bundle)
    assert ended == [True]


@pytest.mark.parametrize("mode", ["BF16", "any", "TF32"])
def test_a_reduced_precision_of_the_environment_is_noted(bundle, monkeypatch, mode):
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", mode)
    monkeypatch.setenv("DNNL_DEFAULT_FPMATH_MODE", "STRICT")
    (note,) = load(bundle).notes
    assert f"ONEDNN_DEFAULT_FPMATH_MODE={mode}" in note
