import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from wan_download import save_wan
from wan_t5 import encode

from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.umt5.folder import open_text_encoder
from vidc.exporters.parts.umt5.network import create
from vidc.exporters.parts.umt5.weights import load_encoder_weights
from vidc.plugins.errors import VidcError

WIDTH = 32


def test_finds_the_parts_of_a_pipeline(saved: Path) -> None:
    found = open_text_encoder(saved, WIDTH)

    assert found.checkpoint == saved / "model.safetensors"
    assert found.tokenizer == saved.parent / "tokenizer" / "tokenizer.json"
    assert (found.config.num_layers, found.config.d_kv, found.config.vocab_size) == (2, 8, 400)


@pytest.mark.parametrize("place", [".", "tokenizer"])
def test_finds_a_tokenizer_in_the_folder(folder: Path, place: str) -> None:
    (folder / place).mkdir(exist_ok=True)
    file = (folder.parent / "tokenizer" / "tokenizer.json").rename(
        folder / place / "tokenizer.json"
    )

    assert open_text_encoder(folder, WIDTH).tokenizer == file


def test_takes_a_torch_file_where_there_is_no_other(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")

    assert open_text_encoder(folder, WIDTH).checkpoint == folder / "pytorch_model.bin"


def refused(code: str, folder: Path, text_dim: int = WIDTH) -> str:
    with pytest.raises(VidcError) as caught:
        open_text_encoder(folder, text_dim)
    assert caught.value.code == code
    return caught.value.message


def test_refuses_a_missing_folder(tmp_path: Path) -> None:
    assert "nowhere" in refused("VIDC-TEXT-FOLDER", tmp_path / "nowhere")


def test_refuses_embeddings_of_another_size(saved: Path) -> None:
    message = refused("VIDC-TEXT-DIM", saved, 4096)

    assert "d_model = 32" in message
    assert "text_dim = 4096" in message


def test_refuses_a_model_without_tokenizer(folder: Path) -> None:
    (folder.parent / "tokenizer").rename(folder.parent / "elsewhere")

    assert "spiece.model" in refused("VIDC-TEXT-TOKENIZER", folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "t5"}, "'t5'"),
        ({"model_type": None}, "None"),
        ({"d_ff": "48"}, "d_ff = '48'"),
        ({"num_heads": 0}, "num_heads = 0"),
        ({"num_layers": True}, "num_layers = True"),
        ({"layer_norm_epsilon": -1e-6}, "layer_norm_epsilon = -1e-06"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon = nan"),
        ({"pad_token_id": -1}, "pad_token_id = -1"),
        ({"feed_forward_proj": "gated-silu"}, "gated-silu"),
    ],
)
def test_refuses_another_model(folder: Path, changes: dict[str, Any], said: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    assert said in refused("VIDC-TEXT-MODEL", folder)


def test_refuses_a_config_without_sizes(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "umt5"}')

    assert "vocab_size is missing" in refused("VIDC-TEXT-MODEL", folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '"umt5"', "\ud800", "[" * 100_000])
def test_refuses_what_is_no_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode(errors="surrogatepass"))

    refused("VIDC-TEXT-MODEL", folder)


@pytest.fixture
def download(tmp_path: Path, umt5: Any, trained: Tokenizer) -> Path:
    """The folder of Wan's own download, as far as the text encoder goes."""
    folder = tmp_path / "Wan2.1-T2V-1.3B"
    save_wan(folder, {}, umt5, trained)
    return folder


@pytest.mark.parametrize("name", [".", "models_t5_umt5-xxl-enc-bf16.pth"])
def test_wan_download(download: Path, saved: Path, name: str) -> None:
    found = open_text_encoder(download / name, WIDTH)

    assert found.checkpoint == download / "models_t5_umt5-xxl-enc-bf16.pth"
    assert found.tokenizer == download / "google" / "umt5-xxl" / "tokenizer.json"
    assert found.config == open_text_encoder(saved, WIDTH).config


def test_wan_download_computes_transformers_embeddings(download: Path, umt5: Any) -> None:
    found = open_text_encoder(download, WIDTH)
    weights = load_encoder_weights(found.checkpoint, found.config, CausalVideo.layouts())
    network = create(found.config, torch.float32, "cpu")
    network.load_state_dict({name: tensor.load() for name, tensor in weights.tensors.items()})
    ids = torch.tensor([5, 17, 300, 42, 8, 1])
    made = network.get_submodule("encoder")(input_ids=ids[None]).last_hidden_state[0]

    torch.testing.assert_close(made, umt5(input_ids=ids[None]).last_hidden_state[0])
    torch.testing.assert_close(made, encode(torch.load(found.checkpoint), ids, 4))
    assert weights.provenance["layout"] == "original Wan text encoder"


@pytest.mark.parametrize("kept", [0, 5])
def test_refuses_a_file_that_is_no_text_encoder(download: Path, kept: int) -> None:
    file = download / "models_t5_umt5-xxl-enc-bf16.pth"
    state = dict(list(torch.load(file).items())[:kept]) | {"other.weight": torch.zeros(2, 2)}
    torch.save(state, file)

    assert str(file) in refused("VIDC-TEXT-MODEL", download)


def test_refuses_a_download_without_tokenizer(download: Path) -> None:
    (download / "google" / "umt5-xxl" / "tokenizer.json").unlink()

    assert "google/umt5-xxl" in refused("VIDC-TEXT-TOKENIZER", download)
