"""What a run's figures are, from what workers said."""

from __future__ import annotations

import pytest

from smalti.pipeline.control import Beat
from smalti.pipeline.meter import Meter, estimate
from smalti.pipeline.worker import Done
from tests.pipeline.conftest import PROFILE

GPUS = PROFILE.model_copy(update={"kind": "vllm", "base_url": None, "gpus": 2, "price": 3.0, "rate": 20.0})


def done(rows: int, now: float, busy: float, engine: str = "a", failed: int = 0, stopped: bool = False) -> Done:
    """An engine that was opened at 1000 and first asked at 1060."""
    return Done("uri", rows, failed, 100 * rows, engine, 1000.0, 1060.0, now, busy, stopped)


def test_a_gpu_costs_from_the_start_of_loading() -> None:
    meter = Meter("caption", 100, GPUS)
    meter.add(done(50, 1160.0, 100.0))
    assert meter.gpu_seconds == 2 * 160
    meter.add(done(50, 1360.0, 280.0, engine="b"))
    use = meter.use()
    assert use.gpu_hours == pytest.approx(2 * (160 + 360) / 3600, abs=1e-6)
    assert use.cost == pytest.approx(use.gpu_hours * 3, abs=1e-3)
    assert use.cost_per_1000 == pytest.approx(use.gpu_hours * 3 * 10, abs=1e-2)
    assert (use.engines, use.tokens) == (2, 10000)
    assert use.rows_per_second == pytest.approx(100 / 300, abs=1e-3)


def test_earlier_runs_are_in_the_cost_and_not_in_the_price_of_a_row() -> None:
    meter = Meter("caption", 100, GPUS)
    meter.add(done(100, 1160.0, 100.0))
    use = meter.use(before=3600.0)
    assert use.gpu_hours_before == 1.0
    assert use.cost == pytest.approx((1 + 320 / 3600) * 3, abs=1e-3)
    assert use.cost_per_1000 == pytest.approx(10 * 320 / 3600 * 3, abs=1e-3)


@pytest.mark.parametrize(("busy", "side"), [(97.0, "engines"), (60.0, "preparation")])
def test_the_side_that_is_waited_for_is_named(busy: float, side: str) -> None:
    meter = Meter("caption", 100, GPUS)
    meter.add(done(100, 1160.0, busy))
    use = meter.use()
    assert (use.busy, use.bottleneck) == (busy / 100, side)
    assert f"{busy:.0f} % busy (waiting for {side})" in meter.line()


def test_the_last_word_of_an_engine_counts_in_whatever_order_it_comes() -> None:
    meter = Meter("caption", 100, GPUS)
    meter.add(done(10, 1360.0, 300.0))
    meter.add(done(10, 1160.0, 100.0))
    assert meter.use().busy == 1.0
    assert meter.gpu_seconds == 2 * 360


def test_a_line_is_about_the_time_since_the_line_before() -> None:
    now = [1160.0]
    meter = Meter("caption", 1000, GPUS, clock=lambda: now[0])
    assert meter.line() == "caption: 0 of 1000 rows, the engines are starting"
    meter.add(done(100, 1160.0, 100.0, failed=3))
    assert meter.line() == (
        "caption: 100 of 1000 rows (10.0 %), 3 failed; 1 engine, each 1.0 rows/s and 100 tokens/s, 100 % busy "
        "(waiting for engines); done in about 15 min"
    )
    meter.add(done(100, 1180.0, 110.0))
    now[0] = 1180.0
    assert "each 5.0 rows/s and 500 tokens/s, 50 % busy (waiting for preparation); done in about 3 min" in meter.line()


def test_an_engine_that_is_long_at_its_answers_is_busy() -> None:
    now = [1160.0]
    meter = Meter("caption", 1000, GPUS, clock=lambda: now[0])
    meter.see({"a": Beat(1000.0, 0.0, 0.0, 1059.0)})
    assert meter.line() == "caption: 0 of 1000 rows, the engines are starting"
    meter.see({"a": Beat(1000.0, 1060.0, 99.0, 1160.0)})
    assert "0 of 1000 rows" in meter.line()
    meter.add(done(100, 1160.0, 99.0))
    now[0] = 1260.0
    meter.see({"a": Beat(1000.0, 1060.0, 199.0, 1260.0)})
    line = meter.line()
    assert "1 engine, each 1.0 rows/s" in line
    assert "100 % busy (waiting for engines)" in line
    assert meter.gpu_seconds == 2 * 260
    assert meter.use().busy == 0.99  # a run's figures end with its last answer


def test_an_estimate_is_what_the_profile_states() -> None:
    assert estimate("caption", 144_000, 8, GPUS) == (
        "caption: 144000 rows for 8 engines of told; at 20 rows/s each about 15 min and 4.00 GPU hours, 12.00 at 3 an hour, "
        "without loading"
    )
    assert "states no rate" in estimate("caption", 10, 1, PROFILE)
