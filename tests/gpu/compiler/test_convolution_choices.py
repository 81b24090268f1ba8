"""Forms of convolutions, measured on a GPU as a build measures them."""

import pytest

from vidc.compiler.backends.aoti.convolution_choices import Decided, engine_chooser
from vidc.compiler.backends.aoti.convolution_forms import Sizes, candidates

SIZES = (
    Sizes(384, 384, 3, 20, 24, operator=True),
    Sizes(96, 96, 12, 16, 24, batch=2, operator=True),
    Sizes(96, 3, 12, 16, 24, operator=True),
    Sizes(64, 32, 6, 20, 24, upsampled=True),
    Sizes(1280, 1280, 1, 5, 4, kernel=(3, 3), padding=(1, 1)),
)


@pytest.mark.usefixtures("library")
def test_forms_are_measured_once_for_a_gpu(tmp_path):
    first, second = (engine_chooser(True, tmp_path) for _ in range(2))
    for sizes in SIZES:
        form = first(sizes)
        choice = first.choices[str(sizes)]
        assert choice.decided is Decided.MEASURED, choice.reason
        known = {**choice.times_ms, **choice.at_least_ms}
        assert known.keys() == {str(each) for each in candidates(sizes)}
        assert all(0 < ms < 1000 for ms in known.values())
        assert second(sizes) is form
        assert second.choices[str(sizes)].decided is Decided.RECORDED
    assert first.notes == second.notes == ()
