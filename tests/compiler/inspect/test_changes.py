from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.inspect.changes import Change, changes, sections
from vidc.compiler.store.digest import flatten

LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
KEYS = st.text("ab", min_size=1, max_size=2)
TABLES = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | LEAVES, max_size=3),
    max_leaves=10,
)


def test_changed_removed_and_added_leaves_are_listed_in_that_order():
    old = {"kept": 1, "changed": {"x": [1]}, "removed": "r"}
    new = {"added": 2, "kept": 1, "changed": {"x": [2]}}
    assert changes(old, new) == (
        Change("changed.x", [1], [2]),
        Change("removed", "r", None),
        Change("added", None, 2),
    )


def test_subjects_without_changes_are_left_out():
    assert sections({"a": {"x": 1}, "b": {"y": 1}}, {"a": {"x": 1}, "c": {"z": 1}}) == {
        "b": (Change("y", 1, None),),
        "c": (Change("z", None, 1),),
    }


@given(TABLES, TABLES)
def test_applying_the_changes_gives_the_new_table(old, new):
    applied = flatten(old)
    for change in changes(old, new):
        applied[change.name] = change.new
    assert {name: value for name, value in applied.items() if value is not None} == flatten(new)
    assert changes(new, new) == ()
