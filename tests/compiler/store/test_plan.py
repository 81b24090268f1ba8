from pathlib import Path
from typing import Any

import pytest
from function_stage import FunctionStage

from vidc.compiler.store.plan import Status
from vidc.compiler.store.stage import Input, Stage
from vidc.plugins.errors import BuildError


def pair(build: Any, **load: Any) -> tuple[Stage, Stage]:
    return (
        build.stage("load", {"weights": "w"}, **load),
        build.stage("export", {"graph": "g"}, inputs=(Input("load"),)),
    )


def statuses(rows: Any) -> list[Status]:
    return [row.status for row in rows]


def test_a_first_build_misses_and_what_depends_on_it_is_unknown(build: Any) -> None:
    load, export = build.plan(*pair(build))
    assert (load.status, load.reasons) == (Status.MISS, ())
    assert (export.status, export.key, export.reasons) == (Status.UNKNOWN, None, ("after load",))
    assert not build.root.exists()


def test_built_stage_is_a_hit_under_its_planned_key(build: Any) -> None:
    results = build.run(*pair(build))
    rows = build.plan(*pair(build))
    assert statuses(rows) == [Status.HIT, Status.HIT]
    assert [row.key for row in rows] == [results["load"].key, results["export"].key]


def test_a_stale_stage_says_which_components_changed(build: Any, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_text("old")

    def load(window: int, torch: str, target: str, **config: Any) -> Stage:
        return build.stage(
            "load",
            {},
            config={"stream": {"window": window, "sink": 3}, **config},
            tools={"torch": torch},
            target={"gpu": target},
            files={"checkpoint": weights},
        )

    build.run(load(12, "2.12", "h100", seed=1))
    weights.write_text("new")
    (row,) = build.plan(load(8, "2.13", "h200", eps=1e-6))
    assert row.status is Status.STALE
    assert row.reasons == (
        "config.eps: absent -> 1e-06",
        "config.seed: 1 -> absent",
        "config.stream.window: 12 -> 8",
        "files.checkpoint",
        'target.gpu: "h100" -> "h200"',
        'tools.torch: "2.12" -> "2.13"',
    )


def test_changed_inputs_and_sources_are_named(build: Any) -> None:
    build.run(*pair(build))
    load = build.stage("load", {"weights": "changed"}, config=1)
    build.run(load)
    export = FunctionStage("export", print, ("vidc.compiler",), inputs=(Input("load"),))
    row = build.plan(load, export)[1]
    assert (row.status, row.reasons) == (Status.STALE, ("inputs.load", "sources"))


def test_an_unknown_stage_says_what_is_known_to_have_changed(build: Any) -> None:
    build.run(*pair(build))
    load, _ = pair(build, config=1)
    export = build.stage("export", {}, config=2, inputs=(Input("load"),))
    row = build.plan(load, export)[1]
    assert (row.status, row.reasons) == (Status.UNKNOWN, ("after load", "config: null -> 2"))


def test_another_slot_shares_results_but_not_reasons(build: Any) -> None:
    build.run(*pair(build), slot="a")
    assert statuses(build.plan(*pair(build), slot="b")) == [Status.HIT, Status.HIT]
    assert statuses(build.plan(*pair(build, config=1), slot="a"))[0] is Status.STALE
    assert statuses(build.plan(*pair(build, config=1), slot="b"))[0] is Status.MISS


def test_the_reason_is_told_against_the_last_build_even_if_it_was_a_hit(build: Any) -> None:
    for config in (1, 2, 1):
        build.run(build.stage("load", {}, config=config))
    (row,) = build.plan(build.stage("load", {}, config=3))
    assert row.reasons == ("config: 1 -> 3",)


def test_a_damaged_result_is_a_miss(build: Any) -> None:
    results = build.run(*pair(build))
    (results["load"].path / "weights").write_text("")
    load, export = build.plan(*pair(build))
    assert (load.status, load.reasons) == (
        Status.MISS,
        ("its result was removed or is damaged",),
    )
    assert export.status is Status.UNKNOWN


def test_an_outside_file_that_is_missing_is_named(build: Any, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"stage load: cannot read .*absent") as error:
        build.plan(build.stage("load", {}, files={"checkpoint": tmp_path / "absent"}))
    assert error.value.code == "VIDC-BUILD-INPUT"
