from vidc.compiler.store.digest import flatten


def test_leaves_have_dotted_names_and_lists_are_leaves():
    assert flatten({"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None}) == {
        "a.b.c": 1,
        "a.d": [1, 2],
        "e": None,
    }
