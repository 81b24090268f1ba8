"""The arithmetic of a kernel that merges padding, in float32."""

import torch
from torch import Tensor


def merged_attention(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
    """As ``padded_attention``: a key that stands for n has ``ln(n)`` added to its logit."""
    attended = []
    for row, distinct in enumerate(length.tolist()):
        keys, values = key[row, :distinct].float(), value[row, :distinct].float()
        logits = torch.einsum("thd,shd->hts", query[row].float(), keys) / query.shape[3] ** 0.5
        logits[..., -1] += torch.tensor(float(key.shape[1] - distinct + 1)).log()
        attended.append(torch.einsum("hts,shd->thd", logits.softmax(-1), values))
    return torch.stack(attended).to(query.dtype)
