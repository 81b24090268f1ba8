from install_size import EXTRAS, closure, installed_bytes, seconds


def test_an_extra_adds_to_the_base():
    base = closure("")
    assert {"vidc", "torch", "click", "jinja2", "markupsafe"} <= base
    for extra in EXTRAS:
        assert closure(extra) >= base
    assert {"diffusers", "transformers"} <= closure("build") - base


def test_bytes_are_those_of_installed_files():
    assert installed_bytes("torch") > 1e8 > installed_bytes("click") > 1e4
    assert installed_bytes("no-such-package") == 0


def test_the_time_is_of_the_process_that_runs_the_code():
    assert seconds("sum(range(10**7))") > seconds("pass") > 0
