"""Choice of autoencoders in a causal video model."""

import pytest

from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.errors import UsageError
from vidc.runtime.programs.spec import ProgramSpec


def model(*assignments: str, preset: str = "tiny") -> CausalVideo:
    found = resolve(preset, gpu="cpu", assignments=assignments, environ={}).model
    assert isinstance(found, CausalVideo)
    return found


@pytest.mark.parametrize(
    ("kind", "decoders"), [("wan", ("vae",)), ("taehv", ("taehv",)), ("both", ("vae", "taehv"))]
)
def test_kind_decides_parts_components_and_decoders(kind, decoders):
    found = model(f"vae.kind={kind}")
    spec = program_spec(found)
    assert tuple(found.parts) == ("transformer", *decoders)
    assert spec.decoders == decoders
    decode = [name for name in spec.components if "_decode" in name]
    assert decode == [f"{each}_decode{end}" for each in decoders for end in ("_first", "")]
    assert set(decode) < set(found.components)
    assert CausalVideo.from_tables(found.to_json()) == found


def test_the_vae_without_a_choice_is_the_wan_vae():
    tables = model().to_json()
    del tables["taehv"], tables["vae"]["kind"]
    assert CausalVideo.from_tables(tables) == model()


def test_preset_decodes_with_a_twentieth_of_the_operations():
    full, tiny = model(preset="longlive-1.3b"), model(preset="longlive-1.3b-taehv")
    assert tiny.decode_flops() == pytest.approx(1.56e12, rel=0.01)
    assert tiny.decode_flops() < full.decode_flops() / 20


def test_a_latent_of_wan_2_2_has_sixteen_pixels_a_side():
    settings = ("vae.kind=taehv", "taehv.latent_channels=48", "model.channels=48", "taehv.patch=2")
    found = model(*settings, "stream.height=64", "stream.width=96")
    assert found.latent_size == (4, 6)
    assert found.taehv_part.latent_shape == (1, 3, 48, 4, 6)


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (("vae.kind=tahv",), "VIDC-CONFIG-SETTING", "vae.kind = 'tahv' is none of wan, taehv"),
        (("vae.kind=taehv", "taehv.latent_channels=48"), "VIDC-CONFIG-SIZES",
         "model.channels = 16 but taehv.latent_channels = 48"),
        (("vae.kind=both", "taehv.patch=2"), "VIDC-CONFIG-SIZES",
         "8 pixels a side in vae, and 16 in taehv"),
        (("vae.kind=taehv", "taehv.widths=[8, 8, 8]"), "VIDC-CONFIG-SIZES", "are not 4 numbers"),
        (("vae.kind=taehv", "taehv.patch=2", "stream.width=48"), "VIDC-CONFIG-SIZES",
         "stream.width = 48 is not a multiple of 32"),
    ],
)  # fmt: skip
def test_refuses_sizes_that_do_not_fit(settings, code, message):
    with pytest.raises(UsageError) as caught:
        model(*settings)
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_program_with_one_decoder_takes_no_name():
    assert ProgramSpec().with_decoder(None) == ProgramSpec()
    with pytest.raises(UsageError) as caught:
        ProgramSpec().with_decoder("vae")
    assert (caught.value.code, caught.value.hint) == (
        "VIDC-SESSION-DECODER", "leave the decoder out",
    )  # fmt: skip
