import json
import math
import os
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vidc.compiler.bench.metrics import Decoding
from vidc.compiler.bench.record import SCHEMA, Stored, against_stored, differences
from vidc.compiler.bench.verdict import Outcome
from vidc.plugins.errors import UsageError

METRICS = Decoding("vae", "VAE").metrics


@pytest.fixture
def store(tmp_path):
    def store(result, **changes):
        path = tmp_path / "stored.json"
        path.write_text(json.dumps({"schema": SCHEMA, **result.to_json(), **changes}))
        return Stored.read(path, METRICS)

    return store


def outcomes(result):
    return {e.metric: e.verdict.outcome for e in result.judgments if e.against == "stored.json"}


def test_document_has_the_fields_of_the_contract(make_result):
    document = json.loads(json.dumps(make_result().to_json(), allow_nan=False))
    assert document["passed"] is True
    for stream in (document["metrics"], document["baselines"]["eager"]):
        for metric in stream.values():
            assert {"median", "ci95", "n", "samples", "unit", "p99", "max", "mean"} <= set(metric)
            assert len(metric["samples"]) == metric["n"]
    block = document["metrics"]["block_ms"]
    assert block["ci95"][0] <= block["median"] <= block["ci95"][1]
    assert document["metrics"]["cold_start_s"]["ci95"] is None
    assert document["fingerprint"]["hash"]
    assert {row["verdict"] for row in document["verdicts"]} == {"faster", "cannot tell"}


def test_only_measured_figures_are_judged(make_result):
    judged = [each.metric for each in make_result().judgments]
    assert judged == [
        "block_ms", "vae_ms", "stream_ms", "switch_ms", "switch_block_ms", "cold_start_s",
    ]  # fmt: skip


def test_only_a_slower_bundle_is_a_regression(make_result, store):
    before = store(make_result())
    same = against_stored(make_result(), before)
    assert outcomes(same)["block_ms"] is Outcome.SAME
    assert not same.regressions
    slower = against_stored(make_result(slower=1.3), before)
    assert {each.metric for each in slower.regressions} == {
        "block_ms", "vae_ms", "stream_ms", "switch_ms", "switch_block_ms",
    }  # fmt: skip
    assert slower.to_json()["passed"] is False
    # Slower than eager, and that alone gates nothing.
    assert not make_result(slower=3.0).regressions
    faster = against_stored(make_result(slower=0.5), before)
    assert outcomes(faster)["block_ms"] is Outcome.FASTER


def test_another_machine_leaves_everything_open(make_result, store):
    result = make_result(slower=1.3)
    elsewhere = {"machine": {"cpu": "a CPU", "cores": 8, "gpu": None}}
    found = against_stored(result, store(make_result(), fingerprint=elsewhere))
    assert set(outcomes(found).values()) == {Outcome.CANNOT_TELL}
    reason = found.judgments[-1].verdict.reasons[0]
    assert reason == "stored.json is of another machine: cores 8 there, 4 here"


@pytest.mark.parametrize(("there", "here"), [(0.5, 0.0), (0.0, 0.5), (0.0, None), (None, 0.02)])
def test_a_busy_cpu_leaves_everything_open(make_result, store, there, here):
    stored = store(make_result(), disturbance=there)
    found = against_stored(make_result(slower=1.3, disturbance=here), stored)
    assert bool(found.regressions) == (0.5 not in (there, here))


def test_other_software_is_compared_and_another_workload_is_told(make_result, store):
    result = make_result(workload={"preset": "tiny", "window": 9})
    found = against_stored(result, store(make_result()))
    assert found.notes[-1] == (
        "stored.json is of another workload: window 12 there, 9 here; "
        "timesteps [1000.0, 500.0] there, None here"
    )
    assert outcomes(found)["block_ms"] is Outcome.SAME


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"schema": 2}', '{"schema": 1}', "\xff", "[" * 100_000, "1e400"],
)
def test_rejects_invalid_result(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as error:
        Stored.read(path, METRICS)
    assert error.value.code == "VIDC-BENCH-RESULT"


@pytest.mark.parametrize(("key", "value"), [("metrics", {}), ("disturbance", math.nan)])
def test_a_result_without_metrics_or_a_share_is_refused(tmp_path, make_result, key, value):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": SCHEMA, **make_result(n=6).to_json(), key: value}))
    with pytest.raises(UsageError, match="it has none of the metrics, or its disturbance"):
        Stored.read(path, METRICS)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "pipe"):
        with pytest.raises(UsageError, match="VIDC-BENCH-RESULT"):
            Stored.read(path, METRICS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from(
        [("metrics",), ("metrics", "block_ms"), ("metrics", "block_ms", "samples"),
         ("fingerprint",), ("fingerprint", "machine"), ("workload",), ("disturbance",), ("schema",)]
    ),
    json_values,
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_place_of_a_part_is_read_or_refused(tmp_path, make_result, keys, value):
    document = {"schema": SCHEMA, **make_result(n=6).to_json()}
    part = document
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    with suppress(UsageError):
        against_stored(make_result(n=6), Stored.read(path, METRICS))


@given(st.dictionaries(st.text(), st.integers()), st.dictionaries(st.text(), st.integers()))
def test_differences_are_told_where_there_are_some(there, here):
    assert bool(differences(there, here)) == (there != here)


def test_differences_of_tables_within_are_told_by_name():
    there = {"cores": 8, "gpu": {"name": "A", "memory": 1}}
    here = {"cores": 8, "gpu": {"name": "B", "memory": 1}}
    assert differences(there, here) == "gpu.name A there, B here"
    assert differences({"cores": 8, "gpu": None}, here) == (
        "gpu.name None there, B here; gpu.memory None there, 1 here"
    )
