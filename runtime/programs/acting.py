"""Base class of sessions that generate a frame at a time from past frames and actions."""

from typing import TypeVar

import torch
from torch import Tensor

from vidc.runtime.graphs import Work
from vidc.runtime.noise import THREADS, NoiseSource
from vidc.runtime.programs.action_spec import ActionSpec
from vidc.runtime.programs.base import LATENTS, Session
from vidc.runtime.programs.world_inputs import NOISE, action_of, pixels_of

S = TypeVar("S", bound=ActionSpec)


class Acting(Session[S]):
    """A session that makes each frame from an action and past frames, which are states.

    A subclass prepares ``_replay_frame``, which computes a frame from ``_draws``, ``_action`` and
    the states, and then updates the states for the next frame.
    """

    _replay_frame: Work

    def act(self, actions: Tensor | int) -> None:
        """Sets the action of all later frames, until it is called again.

        Args:
            actions: ``[inputs]`` of any dtype, each 0 or 1, or from -1 to 1 for those in
                ``spec.movements``. If the model's actions are one-hot, exactly one is 1, and the
                action's index may be given in their place.

        Raises:
            UsageError: ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
        """
        action = action_of(actions, self.spec, (self.spec.actions,), self._resources.device)
        with self._turn(LATENTS, retryable=True):
            self._action.copy_(action)

    def condition(self, action: Tensor | int) -> None:
        """Sets the action of all later frames; the same as ``act``."""
        self.act(action)

    def _allocate(self, device: torch.device) -> None:
        spec = self.spec
        self._noise = torch.zeros(spec.noise_shape, dtype=torch.float32, device=device)
        pieces = self._noise[0].split([draw.size for draw in spec.draws])
        self._draws = [p.view(d.shape) for p, d in zip(pieces, spec.draws, strict=True)]
        """Views of ``_noise``, one for each draw."""
        self._none = torch.zeros(spec.actions, dtype=torch.float32, device=device)
        """The action that does nothing: zeros, or for one-hot actions the first one."""
        if spec.one_hot:
            self._none[0] = 1
        self._action = self._none.clone()

    def _clear(self) -> None:
        super()._clear()
        self._action.copy_(self._none)
        (steps, values), device = self.spec.noise_shape, self._noise.device
        self._source = NoiseSource(self.seed, steps, (values,), device)
        self.blocks = 0
        """Frames generated so far."""

    def _past_frames(
        self, name: str, value: object, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """Returns past frames from a caller in float32, from -1 to 1; as ``pixels_of``."""
        resources = self._resources
        return pixels_of(name, value, shape, resources.device, resources.strict)

    def _past_actions(self, actions: Tensor | None) -> Tensor:
        """Returns the actions of past frames from a caller, ``[past, inputs]``; none by default.

        Raises:
            UsageError: ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
        """
        spec = self.spec
        if actions is None:
            return self._none.expand(spec.past, -1)
        return action_of(actions, spec, (spec.past, spec.actions), self._resources.device)

    def _generate(
        self, noise: Tensor | None, result: Tensor, checked: Tensor | None = None
    ) -> Tensor:
        """Generates a frame; returns a clone of ``result``, which ``_replay_frame`` writes.

        Args:
            noise: a caller's noise, or None to draw it.
            result: tensor to return.
            checked: tensor to check: the session ends if its values are not finite.
        """
        given = None if noise is None else self._take(NOISE, noise, self.spec.noise_shape)
        with self._turn(LATENTS, after_caller=given is not None, retryable=True):
            if given is None:
                self._source.fill(self._noise, self.blocks)
            else:
                self._noise.copy_(given)
            self._unfinished = True
            self._replay_frame()
            self._unfinished = False
            if checked is not None:
                self._watch(LATENTS, checked)
            made = result.clone()
            self.blocks += 1
        if given is None:
            # Drawing a frame's noise may take longer than the frame, so threads draw several.
            self._source.draw_ahead(*range(self.blocks, self.blocks + THREADS))
        return self._resources.runners[LATENTS].hand_out(made)


def shift(past: Tensor, newest: Tensor) -> None:
    """Drops the oldest entry of ``past`` and appends ``newest``, in place.

    Args:
        past: entries side by side in dimension 1.
        newest: an entry.
    """
    past.copy_(torch.cat([past[:, newest.shape[1] :], newest], dim=1))
