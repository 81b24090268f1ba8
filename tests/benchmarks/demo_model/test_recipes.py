"""How many points a recipe's scores lose, and whether the committed figures say the same."""

import json
from pathlib import Path

import pytest
from demo_model.recipes import POINTS, SCORES, lost

RESULTS = Path(__file__).parents[3] / "benchmarks/results/demo-recipes.json"
EXACT = {"color": 0.99, "shape": 0.98, "direction": 0.97}


@pytest.mark.parametrize(
    ("below", "within"), [(0.0, True), (0.009, True), (0.0104, False), (0.05, False), (-0.03, True)]
)
def test_one_score_that_loses_more_than_a_point_is_enough(below, within):
    for score in SCORES:
        found = lost({**EXACT, score: EXACT[score] - below, "prompts": 200}, EXACT)
        assert found["points lost"] == pytest.approx(
            dict.fromkeys(SCORES, 0) | {score: 100 * below}
        )
        assert found["within a point"] == dict.fromkeys(SCORES, True) | {score: within}
        assert found["scores passed"] is within


def test_committed_rows_say_what_their_own_scores_say():
    exact, *rows = json.loads(RESULTS.read_text())["rows"]
    assert exact["recipe"] is None
    for row in rows:
        assert {name: row[name] for name in lost(row, exact)} == lost(row, exact)
        assert row["asked"]["points"] == POINTS
        assert "passed" not in row
