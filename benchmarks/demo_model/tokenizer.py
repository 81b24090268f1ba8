"""The closed vocabulary of ``tokens`` as a tokenizer that the runtime reads."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from demo_model.tokens import END, VOCABULARY


def tokenizer() -> Tokenizer:
    """A tokenizer whose ids are those of ``tokens.encode``, ending every text.

    A word that is not of the vocabulary becomes the unknown token, which no caption has: what
    follows of it was never trained.
    """
    made = Tokenizer(models.WordLevel(dict(VOCABULARY), unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(",", "isolated")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    return made
