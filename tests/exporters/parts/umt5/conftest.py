"""A tiny UMT5 and a tokenizer, saved by transformers as a diffusers pipeline holds them."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny_umt5 import WIDTH, save_text_encoder, tiny_tokenizer, tiny_umt5
from tokenizers import Tokenizer

from vidc.exporters.families.causal_video import CausalVideo

LENGTH = 24


@pytest.fixture(scope="session")
def umt5() -> Any:
    return tiny_umt5()


@pytest.fixture(scope="session")
def trained() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory, umt5: Any, trained: Tokenizer) -> Path:
    """A pipeline's folder ``text_encoder``, ``tokenizer`` beside it; not to be changed."""
    return save_text_encoder(tmp_path_factory.mktemp("pipeline"), umt5, trained)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of ``saved`` to change."""
    shutil.copytree(saved.parent, tmp_path / "pipeline")
    return tmp_path / "pipeline" / "text_encoder"


@pytest.fixture(scope="session")
def configure(configure: Callable[..., CausalVideo]) -> Callable[..., CausalVideo]:
    """Makes a video model that takes the tiny encoder's embeddings."""
    return partial(configure, text_len=LENGTH, text_dim=WIDTH)
