import pytest

from vidc.compiler.bench.fingerprint import LIMITS, STATE, fingerprint
from vidc.compiler.bench.text import facts, label, phrase


@pytest.mark.parametrize(
    ("name", "value", "words", "text"),
    [
        ("memory_bytes", 150109880320, "memory", "150.11 GB"),
        ("max_sm_clock_mhz", "1980", "max SM clock", "1980 MHz"),
        ("power_w", "681.02", "power", "681.02 W"),
        ("power_limit_w", "[N/A]", "power limit", "[N/A]"),
        ("temperature_c", "58", "temperature", "58 °C"),
        ("limited_by", "0x0000000000000004", "limited by", "power cap"),
        ("limited_by", "0x24", "limited by", "power cap and heat, by the driver"),
        ("limited_by", "0x0", "limited by", "nothing"),
        ("limited_by", "0x800", "limited by", "0x800"),
        ("limited_by", "[N/A]", "limited by", "[N/A]"),
        ("cudnn", 91900, "cuDNN", "91900"),
        ("timesteps", [1000.0, 937.5], "timesteps", "1000, 937.5"),
        ("commit", None, "commit", "unknown"),
        ("zero", {"a": 0, "b": None, "c": ""}, "zero", "a 0, c "),
    ],
)
def test_entries_read_well(name, value, words, text):
    assert (label(name), phrase(value, name)) == (words, text)


def test_gpu_entries_are_left_out_without_a_gpu():
    found = fingerprint()
    shown = facts(found["machine"], found["software"])
    assert shown["GPU"] == "not used"
    assert not {"driver", "CUDA", "cuDNN"} & set(shown)
    assert {"CPU", "cores", "Python", "packages"} <= set(shown)


def test_every_unit_of_a_gpu_is_known():
    for name in (*LIMITS, *STATE):
        if name.rpartition("_")[2] in ("mhz", "w", "c"):
            assert phrase("1", name) != "1"
            assert not label(name).endswith((" mhz", " w", " c"))
