"""What specc keeps of SGLang's own answers is what SGLang answers."""

from __future__ import annotations

import pytest
from engine_answers import difference, fresh, path_of
from sglang_files import ENVIRONMENT, HERE, NEWEST, ON_GPU, VERSION

KEPT = path_of("sglang", VERSION)


@pytest.mark.skipif(ON_GPU, reason="it was asked on a CPU")
@pytest.mark.skipif(VERSION != NEWEST and not KEPT.exists(), reason="specc reads the answers of the newest version")
def test_answers_are_those_of_this_version() -> None:
    if differing := difference(KEPT, fresh(ENVIRONMENT, HERE / "answers.py")):
        pytest.fail(differing, pytrace=False)
