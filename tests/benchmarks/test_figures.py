import json
import sys
from pathlib import Path

import figures
import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0]
MACHINE = {"machine": {"cpu": "a CPU", "cores": 2, "gpu": None}, "software": {"commit": "c0ffee"}}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with one file of samples, one template and one document."""
    results = tmp_path / "benchmarks/results"
    results.mkdir(parents=True)
    (tmp_path / "benchmarks/tables").mkdir()
    document = {"fingerprint": MACHINE, "a": SAMPLES, "b": [2 * value for value in SAMPLES]}
    (results / "run.json").write_text(json.dumps(document))
    (results / "summary.json").write_text('{"schema": 1, "figures": {}}')
    (tmp_path / "benchmarks/tables/speed.md").write_text(
        "| {step_ms.interval:.1f} | {step_ms:.2f} | [samples]({step_ms.link}), {step_ms.date} |\n"
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/speed.md").write_text(
        "before\n<!-- table speed -->\nold\n<!-- end of speed -->\nafter\n"
    )
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    return tmp_path


def add(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["figures.py", "add", *arguments])
    figures.main()


def add_step(monkeypatch, project, *more):
    samples = str(project / "benchmarks/results/run.json")
    add(monkeypatch, "step_ms", "--unit", "ms", "--date", "2026-11-25", "--samples", samples, "/a",
        *more)  # fmt: skip


def test_every_figure_of_the_repository_follows_from_its_samples():
    assert len(figures.read_summary(ROOT)) > 50
    assert figures.stale_figures(ROOT) == []


def test_every_table_of_the_repository_is_the_one_written_from_the_figures():
    written = {document.relative_to(ROOT).as_posix(): (old, new)
               for document, old, new in figures.tables(ROOT)}  # fmt: skip
    assert {"README.md", "docs/speed.md", "docs/evidence/longlive.md"} <= written.keys()
    assert [name for name, (old, new) in written.items() if old != new] == []


def test_one_command_adds_a_figure_and_writes_its_table(project, monkeypatch):
    add_step(monkeypatch, project)
    (entry,) = json.loads((project / figures.SUMMARY).read_text())["figures"].values()
    assert entry == {
        "median": 4.0, "ci95": [2.0, 6.0], "n": 7, "unit": "ms", "machine": "a CPU, 2 cores",
        "date": "2026-11-25", "commit": "c0ffee", "samples": "benchmarks/results/run.json",
        "pointer": "/a",
    }  # fmt: skip
    assert (project / "docs/speed.md").read_text() == (
        "before\n<!-- table speed -->\n"
        "| 4.0 ms [2.0, 6.0] | 4.00 | [samples](../benchmarks/results/run.json), 2026-11-25 |\n"
        "<!-- end of speed -->\nafter\n"
    )
    assert figures.stale_figures(project) == []


def test_a_ratio_is_of_two_medians_of_one_file(project, monkeypatch):
    add_step(monkeypatch, project)
    samples = str(project / "benchmarks/results/run.json")
    add(monkeypatch, "speedup", "--unit", "x", "--samples", samples, "/b", "--over", "/a")
    figure = figures.read_summary(project)["speedup"]
    assert figure.median == 2.0
    low, high = figure.ci95
    assert low < 2.0 < high
    assert figures.stale_figures(project) == []


@pytest.mark.parametrize("field", ["median", "ci95", "n", "machine", "commit", "samples"])
def test_finds_an_entry_that_its_samples_do_not_give(project, monkeypatch, field):
    add_step(monkeypatch, project)
    document = json.loads((project / figures.SUMMARY).read_text())
    planted = {"ci95": [2.0, 5.0], "median": 3.9, "n": 8}
    document["figures"]["step_ms"][field] = planted.get(field, "another")
    (project / figures.SUMMARY).write_text(json.dumps(document))
    (problem,) = figures.stale_figures(project)
    assert problem.startswith("step_ms")


def test_finds_a_number_edited_in_a_document(project, monkeypatch):
    add_step(monkeypatch, project)
    document = project / "docs/speed.md"
    document.write_text(document.read_text().replace("4.00", "3.00"))
    ((_, old, new),) = figures.tables(project)
    assert old != new


@pytest.mark.parametrize(
    "pointer", ["/missing", "/a/7", "/a/-1", "/a/01", "/fingerprint", "", "x/a"]
)
def test_refuses_a_pointer_without_samples(project, monkeypatch, pointer, capsys):
    samples = str(project / "benchmarks/results/run.json")
    with pytest.raises(SystemExit):
        add(monkeypatch, "step_ms", "--unit", "ms", "--samples", samples, pointer)
    assert "no" in capsys.readouterr().err
    assert figures.read_summary(project) == {}


def test_refuses_another_machine_than_the_samples_name(project, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        add_step(monkeypatch, project, "--machine", "another")
    assert "measured with machine 'a CPU, 2 cores', not 'another'" in capsys.readouterr().err


def test_refuses_a_ratio_of_two_machines(project, monkeypatch, capsys):
    file = project / "benchmarks/results/run.json"
    other = {**MACHINE, "machine": {**MACHINE["machine"], "cores": 8}}
    runs = {name: {"fingerprint": f, "s": SAMPLES} for name, f in (("a", MACHINE), ("b", other))}
    file.write_text(json.dumps(runs))
    with pytest.raises(SystemExit):
        add(monkeypatch, "speedup", "--unit", "x", "--samples", str(file), "/b/s", "--over", "/a/s")
    assert "measured with machine 'a CPU, 2 cores', not 'a CPU, 8 cores'" in capsys.readouterr().err


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf"])
def test_refuses_a_factor_that_is_no_unit(project, monkeypatch, factor, capsys):
    with pytest.raises(SystemExit):
        add_step(monkeypatch, project, "--factor", factor)
    assert "expected a finite number above 0" in capsys.readouterr().err
    assert figures.read_summary(project) == {}


@pytest.mark.parametrize(
    ("template", "text", "reason"),
    [
        ("{unknown_ms:.1f}", None, "has no figure 'unknown_ms'"),
        (None, "<!-- table speed -->\n", "has no end"),
        (None, "no table\n", "templates without a document"),
        (None, "<!-- table other -->\n<!-- end of other -->\n", "no template"),
    ],
)
def test_refuses_tables_that_cannot_be_written(project, monkeypatch, template, text, reason):
    add_step(monkeypatch, project)
    if template is not None:
        (project / "benchmarks/tables/speed.md").write_text(template)
    if text is not None:
        (project / "docs/speed.md").write_text(text)
    with pytest.raises(ValueError, match=reason):
        figures.write_tables(project)


def test_a_star_takes_every_entry(tmp_path):
    document = {"runs": [{"s": 1.5}, {"s": 2.5}]}
    assert figures.samples_at(document, "/runs/*/s") == [1.5, 2.5]
    assert figures.samples_at(document, "/runs/1/s") == [2.5]


def test_every_file_of_samples_is_evidence_of_a_document():
    texts = [ROOT / "SECURITY.md", ROOT / figures.SUMMARY]
    texts += [path for pattern in figures.DOCUMENTS for path in ROOT.glob(pattern)]
    said = "".join(path.read_text() for path in texts)
    files = {path.name for path in (ROOT / figures.SUMMARY).parent.iterdir()}
    assert len(files) > 50
    assert {name for name in files - {"summary.json"} if name not in said} == set()
