from pathlib import Path

import pytest

from vidc.compiler.config.environment import cache_root, environment_layer
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.toml import read_toml
from vidc.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"VIDC_CACHE": "/big/disk", "XDG_CACHE_HOME": "/x"}, Path("/big/disk")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/vidc")),
        ({}, Path.home() / ".cache" / "vidc"),
        ({"VIDC_CACHE": ""}, Path.home() / ".cache" / "vidc"),
    ],
)
def test_the_cache_is_where_the_environment_says(environ, expected):
    assert cache_root(environ) == expected


def test_empty_variable_is_ignored():
    assert environment_layer({"VIDC_GPU": "", "PATH": "/bin"}) == {}


@pytest.mark.parametrize("name", ["VIDC_CUDA", "VIDC_TENSORRT_INCLUDE"])
def test_variables_of_the_packages_own_build_are_no_settings(name):
    assert environment_layer({name: "1"}) == {}
    assert cache_root({name: "1", "XDG_CACHE_HOME": "/x"}) == Path("/x/vidc")


@pytest.mark.parametrize("read", [cache_root, environment_layer])
def test_an_unknown_variable_is_refused(read):
    with pytest.raises(UsageError, match="VIDC_CAHCE"):
        read({"VIDC_CAHCE": "/big/disk"})


@pytest.mark.parametrize("read", [cache_root, environment_layer])
def test_variables_of_a_kubernetes_service_named_vidc_are_ignored(read):
    address = {"VIDC_PORT_80_TCP_ADDR": "10.0.0.1", "VIDC_PORT_80_TCP_PORT": "80"}
    service = {"VIDC_SERVICE_HOST": "10.0.0.1", "VIDC_SERVICE_PORT_HTTP": "80"}
    other = {"VIDC_DEMO_SERVICE_HOST": "10.0.0.2", "VIDC_DEMO_PORT": "tcp://10.0.0.2:80"}
    added = {"VIDC_PORT": "tcp://10.0.0.1:80", "VIDC_PORT_80_TCP": "tcp://10.0.0.1:80"}
    assert read({"XDG_CACHE_HOME": "/x", **service, **added, **address, **other}) == read(
        {"XDG_CACHE_HOME": "/x"}
    )


@pytest.mark.parametrize("environ", [{}, {"VIDC_CACHE": "~/x"}, {"VIDC_CACHE": "~no-such-user/x"}])
def test_a_cache_in_a_home_that_is_missing_is_refused_with_the_variable(monkeypatch, environ):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 1234567)
    with pytest.raises(UsageError, match=r"VIDC-CONFIG-ENVIRONMENT.*\n.*VIDC_CACHE="):
        cache_root(environ)


def test_toml_may_start_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_bytes(b"\xef\xbb\xbf[stream]\r\nwindow = 9\r\n")
    assert read_toml(file) == {"stream": {"window": 9}}


TEXTS = {
    "digits": b"window = " + b"9" * 5000,
    "nested": b"window = " + b"[" * 5000,
    "endless": b"# " + b"x" * 2**24,
    "latin": b"window = '\xe9'",
}


@pytest.mark.parametrize("text", TEXTS)
def test_toml_beyond_any_settings_is_refused(tmp_path, text):
    file = tmp_path / "settings.toml"
    file.write_bytes(TEXTS[text])
    with pytest.raises(UsageError, match="VIDC-CONFIG-FILE"):
        read_toml(file)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, "1979-05-27", "inf", ""])
def test_set_takes_any_text_and_refuses_it_with_a_code(value):
    with pytest.raises(UsageError, match="VIDC-CONFIG"):
        resolve("tiny", gpu="cpu", assignments=(f"stream.window={value}",), environ={})
