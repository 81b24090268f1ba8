"""The optional text encoder: transformers' UMT5 encoder and its tokenizer, from a local folder."""
