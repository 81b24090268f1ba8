import warnings

import pytest

from vidc.exporters.tracing import quiet_torch


def test_what_torch_says_of_its_own_buffers_is_not_shown(recwarn):
    with quiet_torch():
        warnings.warn("The given buffer is not writable, and PyTorch", UserWarning, stacklevel=1)
    assert not recwarn.list


def test_other_warnings_are_shown():
    with pytest.warns(UserWarning, match="beware"), quiet_torch():
        warnings.warn("beware", UserWarning, stacklevel=1)
