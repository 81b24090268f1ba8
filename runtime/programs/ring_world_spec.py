"""Static sizes of a world whose past frames are in rings: the spec of program ``ring_world``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.plugins.signature import Role, Signature
from vidc.runtime.programs.action_spec import ActionSpec, Draw
from vidc.runtime.programs.ddim import velocity_steps
from vidc.runtime.programs.pixels import COLORS

_MAX_SIZE = 2**24
TRAINING_STEPS = 1000


@dataclass(frozen=True)
class RingWorldSpec(ActionSpec):
    """Static sizes of a world and its sampler, DDIM for v-prediction.

    Attributes:
        latent: channels, height and width of a latent frame.
        video: height and width of a frame, in pixels.
        tokens: number of a frame's tokens; each has a ring of its own.
        past: past frames that condition the next one.
        head_dim: channels of one attention head.
        actions: inputs of an action.
        one_hot: True if exactly one input of an action is 1, False if any may be.
        analog: inputs of an action that take values from -1 to 1; the others take 0 or 1.
        timesteps: of the denoising steps, falling.
        alphas: share of a latent's variance that is signal, before each step and after the last.
        context_timestep: timestep of the clean pass, which writes the keys and values that later
            frames read.
    """

    latent: tuple[int, int, int]
    video: tuple[int, int]
    tokens: int
    past: int
    head_dim: int
    actions: int
    one_hot: bool
    analog: tuple[int, ...]
    timesteps: tuple[int, ...]
    alphas: tuple[float, ...]
    context_timestep: int

    def __post_init__(self) -> None:
        sizes = (*self.latent, *self.video, self.tokens, self.window, self.head_dim, self.actions)
        if not all(0 < size <= _MAX_SIZE for size in sizes) or self.past < 0:
            raise ValueError(f"a size is not between 1 and {_MAX_SIZE}")
        if not all(0 <= each < self.actions for each in self.analog):
            raise ValueError(f"analog = {list(self.analog)} are not below {self.actions}")
        if self.one_hot and self.analog:
            raise ValueError("one-hot actions have no analog inputs")
        steps = self.timesteps
        if not steps or list(steps) != sorted(set(steps), reverse=True) or steps[-1] < 0:
            raise ValueError(f"timesteps = {list(steps)} do not fall to a last one of 0 or more")
        if max(*steps, self.context_timestep) >= TRAINING_STEPS or self.context_timestep < 0:
            raise ValueError(f"a timestep is not between 0 and {TRAINING_STEPS - 1}")
        alphas = list(self.alphas)
        if len(alphas) != len(steps) + 1 or alphas != sorted(set(alphas)):
            raise ValueError(f"alphas = {alphas} do not rise over {len(steps)} steps")
        if alphas[0] <= 0 or alphas[-1] > 1:
            raise ValueError(f"alphas = {alphas} are not above 0 and at most 1")

    @property
    def window(self) -> int:
        """Frames that a ring holds, with the newest one."""
        return self.past + 1

    @property
    def movements(self) -> tuple[int, ...]:
        """Inputs of an action that take values from -1 to 1."""
        return self.analog

    @property
    def components(self) -> tuple[str, ...]:
        """Components of a session, in the order of first use."""
        return ("vae_encode", "condition_frame", "denoise", "kv_update", "vae_decode")

    @property
    def decode_components(self) -> tuple[str, ...]:
        """``vae_decode``."""
        return ("vae_decode",)

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.video

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of a latent, ``[1, C, h, w]``."""
        return (1, *self.latent)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """The noise that a frame starts from; the sampler draws none later."""
        return (Draw("denoise.x", self.latent_shape),)

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """Factors of the latent and of the velocity in each DDIM step."""
        return velocity_steps(self.alphas)

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Calls of a frame, and of decoding it."""
        made = {"condition_frame": 1, "denoise": len(self.timesteps), "kv_update": 1}
        return {"block": made, "vae": {"vae_decode": 1}}

    @property
    def full_inputs(self) -> Mapping[str, float]:
        """Position and valid length when the ring is full."""
        return {"position": self.window, "valid_length": self.window}

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes and timesteps."""
        return {**super().workload, "window": self.window, "timesteps": [*self.timesteps]}

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the sizes with every tensor that a session reads or writes."""
        latent, image = self.latent_shape, (1, COLORS, *self.video)
        passes, angles = len(self.timesteps) + 1, (1, self.head_dim // 2)
        of_pass = {
            "latent": latent, "step": (1,), "rope_cos": angles, "rope_sin": angles,
            "position": (1,), "valid_length": (1,),
        }  # fmt: skip
        expected = {
            "vae_encode": {"image": image, "latent": latent},
            "condition_frame": {"timesteps": (passes,), "action": (1, self.actions)},
            "denoise": {**of_pass, "velocity": latent},
            "kv_update": of_pass,
            "vae_decode": {"latent": latent, "frames": (1, 1, COLORS, *self.video)},
        }
        for component, tensors in expected.items():
            signature = signatures[component]
            found = {t.name: t.shape for t in signature if t.role is not Role.STATE}
            if found != tensors:
                raise ValueError(
                    f"{component} has tensors {found}, and the spec's sizes give {tensors}"
                )
            for state in signature.states:
                self._check_state(component, state.name, state.component_shape)

    def _check_state(self, component: str, name: str, shape: tuple[int, ...]) -> None:
        """Compares the sizes that the spec knows with those of a state."""
        if name.startswith("ring."):
            found = (*shape[:2], shape[-1])
            expected: tuple[int, ...] = (self.tokens, self.window, self.head_dim)
        else:
            found, expected = shape[:1], (len(self.timesteps) + 1,)
        if found != expected:
            raise ValueError(
                f"{name} of {component} is {list(shape)}, and the spec's sizes give {expected}"
            )
