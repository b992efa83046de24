"""A report that does not balance cannot be made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.accounting import Accounted


@given(st.integers(0, 9), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), st.integers(-2, 2))
def test_only_balanced_reports_exist(kept: int, dropped: dict[str, int], wrong: int) -> None:
    rows_in = kept + sum(dropped.values()) + wrong
    if rows_in < 0:
        return
    if wrong:
        with pytest.raises(ValueError, match="does not balance"):
            Accounted(stage="x", rows_in=rows_in, rows_out=kept, dropped=dropped)
    else:
        assert Accounted(stage="x", rows_in=rows_in, rows_out=kept, dropped=dropped).rows_out == kept
