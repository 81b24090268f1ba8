"""DIAMOND's world model in plain PyTorch: networks, samplers and the loop over frames.

Written from the paper (arXiv 2405.12399) and the published configuration; it imports nothing of
vidc. Weights have the names of the published checkpoints.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


@dataclass
class Net:
    """Sizes of one network."""

    channels: list
    depths: list
    attention: list
    cond: int
    past: int
    offset: float = 0.1
    data: float = 0.5
    noise_cond: bool = True


@dataclass
class Steps:
    """A sampler's settings, as in the published YAML."""

    n: int = 1
    order: int = 1
    low: float = 2e-3
    high: float = 5.0
    churn: float = 0.0
    tmin: float = 0.0
    tmax: float = math.inf
    s_noise: float = 1.0
    s_cond: float = 0.0

    def sigmas(self):
        ramp = torch.linspace(0, 1, self.n)
        a, b = self.high ** (1 / 7), self.low ** (1 / 7)
        return torch.cat([(a + ramp * (b - a)) ** 7, torch.zeros(1)])


def upsampling(n, order):
    """Settings of the published upsampler's sampler."""
    return Steps(n, order, low=1.0, churn=10.0, tmin=1.0, tmax=5.0, s_noise=0.9)


FAST = (Steps(1, s_cond=0.005), upsampling(1, 2))
HIGHER_QUALITY = (Steps(3, s_cond=0.005), upsampling(10, 1))


def group_count(channels):
    return max(1, channels // 32)


class AdaNorm(nn.Module):
    def __init__(self, channels, cond):
        super().__init__()
        self.linear = nn.Linear(cond, 2 * channels)

    def forward(self, x, c):
        scale, shift = self.linear(c).unsqueeze(-1).unsqueeze(-1).chunk(2, 1)
        b, n, h, w = x.shape
        grouped = x.reshape(b, group_count(n), -1)
        mean = grouped.mean(-1, keepdim=True)
        var = ((grouped - mean) ** 2).mean(-1, keepdim=True)
        normed = ((grouped - mean) / (var + 1e-5).sqrt()).reshape(b, n, h, w)
        return normed * (1 + scale) + shift


class Norm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(group_count(channels), channels, eps=1e-5)

    def forward(self, x):
        return self.norm(x)


class SelfAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = Norm(channels)
        self.qkv_proj = nn.Conv2d(channels, channels * 3, 1)
        self.out_proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv_proj(self.norm(x)).reshape(b, 3, c // 8, 8, h * w).unbind(1)
        weights = torch.softmax(q.mT @ k / math.sqrt(8), -1)
        return x + self.out_proj((v @ weights.mT).reshape(b, c, h, w))


class Residual(nn.Module):
    def __init__(self, a, b, cond, attention):
        super().__init__()
        if a != b:
            self.proj = nn.Conv2d(a, b, 1)
        self.norm1, self.norm2 = AdaNorm(a, cond), AdaNorm(b, cond)
        self.conv1 = nn.Conv2d(a, b, 3, padding=1)
        self.conv2 = nn.Conv2d(b, b, 3, padding=1)
        if attention:
            self.attn = SelfAttention(b)

    def forward(self, x, c):
        shortcut = self.proj(x) if hasattr(self, "proj") else x
        y = self.conv1(functional.silu(self.norm1(x, c)))
        y = shortcut + self.conv2(functional.silu(self.norm2(y, c)))
        return self.attn(y) if hasattr(self, "attn") else y


class Stack(nn.Module):
    def __init__(self, pairs, cond, attention):
        super().__init__()
        self.resblocks = nn.ModuleList(Residual(a, b, cond, attention) for a, b in pairs)


class Resize(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)


class Unet(nn.Module):
    def __init__(self, net):
        super().__init__()
        wide = net.channels
        self.d_blocks, up = nn.ModuleList(), []
        for i, (n, attention) in enumerate(zip(net.depths, net.attention, strict=True)):
            a, b = wide[max(i - 1, 0)], wide[i]
            self.d_blocks.append(Stack([(a, b)] + [(b, b)] * (n - 1), net.cond, attention))
            up.insert(0, Stack([(2 * b, b)] * n + [(a + b, a)], net.cond, attention))
        self.u_blocks = nn.ModuleList(up)
        self.mid_blocks = Stack([(wide[-1], wide[-1])] * 2, net.cond, True)
        self.downsamples = nn.ModuleList([nn.Identity(), *(Resize(c, 2) for c in wide[:-1])])
        self.upsamples = nn.ModuleList([nn.Identity(), *(Resize(c, 1) for c in wide[:-1][::-1])])
        self.levels = len(wide)

    def forward(self, x, c):
        _, _, h, w = x.shape
        unit = 2 ** (self.levels - 1)
        padded = x.new_zeros(*x.shape[:2], math.ceil(h / unit) * unit, math.ceil(w / unit) * unit)
        padded[:, :, :h, :w] = x
        x, memory = padded, []
        for i in range(self.levels):
            if i:
                x = self.downsamples[i].conv(x)
            kept = [x]
            for block in self.d_blocks[i].resblocks:
                x = block(x, c)
                kept.append(x)
            memory.append(kept)
        for block in self.mid_blocks.resblocks:
            x = block(x, c)
        for i in range(self.levels):
            if i:
                doubled = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
                x = self.upsamples[i].conv(doubled)
            kept = memory[self.levels - 1 - i]
            for block, skip in zip(self.u_blocks[i].resblocks, kept[::-1], strict=True):
                x = block(torch.cat([x, skip], 1), c)
        return x[:, :, :h, :w]


class Features(nn.Module):
    def __init__(self, cond):
        super().__init__()
        self.register_buffer("weight", torch.randn(1, cond // 2))

    def forward(self, value):
        turned = 2 * math.pi * value * self.weight
        return torch.cat([torch.cos(turned), torch.sin(turned)], 1)


class Inner(nn.Module):
    def __init__(self, net, images, actions):
        super().__init__()
        self.noise_emb = Features(net.cond)
        if net.noise_cond:
            self.noise_cond_emb = Features(net.cond)
        if actions:
            self.act_emb = nn.ModuleList([nn.Embedding(actions, net.cond // net.past)])
        self.cond_proj = nn.Sequential(
            nn.Linear(net.cond, net.cond), nn.SiLU(), nn.Linear(net.cond, net.cond)
        )
        self.conv_in = nn.Conv2d(3 * images, net.channels[0], 3, padding=1)
        self.unet = Unet(net)
        self.norm_out = Norm(net.channels[0])
        self.conv_out = nn.Conv2d(net.channels[0], 3, 3, padding=1)


class Denoiser(nn.Module):
    """One network with its preconditioning."""

    def __init__(self, net, images, actions=0):
        super().__init__()
        self.net = net
        self.inner_model = Inner(net, images, actions)

    def before_truncation(self, x, sigma, sigma_cond, images, actions=None):
        net, inner = self.net, self.inner_model
        s = torch.sqrt(torch.as_tensor(sigma) ** 2 + net.offset**2)
        c_in = 1 / torch.sqrt(s**2 + net.data**2)
        c_skip = net.data**2 / (s**2 + net.data**2)
        c_out = s * torch.sqrt(c_skip)
        c = inner.noise_emb(torch.log(s) / 4)
        if net.noise_cond:
            said = x.new_full((), math.log(sigma_cond) / 4 if sigma_cond else 0.0)
            c = c + inner.noise_cond_emb(said)
        if actions is not None:
            rows = [row @ inner.act_emb[0].weight for row in actions]
            c = c + torch.cat(rows)[None]
        y = inner.conv_in(torch.cat([images / net.data, c_in * x], 1))
        y = inner.unet(y, inner.cond_proj(c))
        y = inner.conv_out(functional.silu(inner.norm_out(y)))
        return (c_skip * x + c_out * y).clamp(-1, 1)


def truncate(frame):
    """Rounds down to 256 levels."""
    return ((frame + 1) / 2 * 255).to(torch.uint8) / 255 * 2 - 1


@dataclass
class World:
    """A state and the step from one frame to the next.

    ``seen`` collects what networks returned before truncation, and the inputs of each call.
    """

    agent: nn.Module
    steps: tuple
    factor: int
    low: torch.Tensor
    full: torch.Tensor
    actions: torch.Tensor
    draw: object = None
    seen: list = field(default_factory=list)

    def sample(self, name, past, actions, size):
        steps, network = self.steps[name == "upsampler"], getattr(self.agent, name)
        sigmas = steps.sigmas()
        most = min(steps.churn / steps.n, math.sqrt(2) - 1)
        x = self.draw((1, 3, *size))
        for sigma, after in pairwise(sigmas):
            gamma = most if steps.tmin <= sigma <= steps.tmax else 0
            hat = sigma * (1 + gamma)
            if gamma > 0:
                x = x + self.draw(x.shape) * steps.s_noise * torch.sqrt(hat**2 - sigma**2)
            if steps.s_cond > 0:
                zero = 0 * self.draw((1, past.shape[1], 1, 1))
                past = past + zero + self.draw(past.shape) * steps.s_cond
            d = (x - self.call(network, x, sigma, steps.s_cond, past, actions)) / hat
            if steps.order == 2 and after > 0:
                other = x + d * (after - hat)
                second = self.call(network, other, after, steps.s_cond, past, actions)
                d = (d + (other - second) / after) / 2
            x = x + d * (after - hat)
        return x

    def call(self, network, x, sigma, sigma_cond, past, actions):
        exact = network.before_truncation(x, sigma, sigma_cond, past, actions)
        self.seen.append(exact)
        return truncate(exact)

    @torch.no_grad()
    def step(self, action):
        """Returns the next frame ``[1, 3, H, W]``."""
        self.actions[-1] = action
        h, w = self.low.shape[-2:]
        low = frame = self.sample("denoiser", self.low.reshape(1, -1, h, w), self.actions, (h, w))
        if self.factor > 1:
            large = functional.interpolate(low, scale_factor=self.factor, mode="bicubic")
            images = torch.cat([self.full[-1:], large], 1)
            frame = self.sample("upsampler", images, None, large.shape[-2:])
            self.full = torch.cat([self.full[1:], frame])
        self.low = torch.cat([self.low[1:], low])
        self.actions = torch.cat([self.actions[1:], self.actions[:1]])
        return frame


def agent(denoiser, upsampler, actions, seed=0):
    """Returns both networks with random weights under which every part matters."""
    torch.manual_seed(seed)
    made = nn.Module()
    made.denoiser = Denoiser(denoiser, denoiser.past + 1, actions)
    if upsampler is not None:
        made.upsampler = Denoiser(upsampler, upsampler.past + 2)
    for name, weight in made.named_parameters():
        if weight.ndim > 1:
            gain = 0.3 if "norm" in name else 1.4
            weight.data = torch.randn(weight.shape) * gain / math.sqrt(weight[0].numel())
        else:
            weight.data = torch.randn(weight.shape) * 0.5 + ("norm.weight" in name)
    return made.requires_grad_(False).eval()
