"""A scheduled recipe runs at its times, and never makes up for one that passed long ago."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from airflow.sdk import timezone
from airflow.timetables import trigger
from airflow.timetables.base import DataInterval, TimeRestriction

from finetune_airflow.timetable import NightlyTimetable

SetClock = Callable[[str], None]


def at(text: str) -> datetime:
    """Return a time of January 2026 in UTC: day, hour and minute."""
    return datetime.strptime(f"2026-01-{text}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Set the time that both timetables see."""

    def set_to(text: str) -> None:
        monkeypatch.setattr(trigger, "utcnow", lambda: timezone.coerce_datetime(at(text)))
        monkeypatch.setattr(timezone, "utcnow", lambda: timezone.coerce_datetime(at(text)))

    return set_to


def next_run(last: str | None, cron: str = "0 2 * * *", latest: str | None = None) -> datetime | None:
    """Return when the next run is due, after a last one at some time or none."""
    exact = timezone.coerce_datetime(at(last)) if last else None
    until = timezone.coerce_datetime(at(latest)) if latest else None
    info = NightlyTimetable(cron, timezone="UTC").next_dagrun_info(
        last_automated_data_interval=DataInterval.exact(exact) if exact else None,
        restriction=TimeRestriction(earliest=None, latest=until, catchup=False),
    )
    if info is not None:
        assert info.data_interval is not None
        assert info.data_interval.start == info.data_interval.end == info.run_after
    return info.run_after if info else None


@pytest.mark.parametrize(
    ("now", "last", "due"),
    [
        ("20 01:00", "19 02:00", "20 02:00"),  # on time
        ("20 12:00", "20 02:00", "21 02:00"),  # last night's was made
        ("20 12:00", "17 02:00", "21 02:00"),  # paused for some nights
        ("20 12:00", None, "21 02:00"),  # never run, unpaused at noon
        ("20 03:30", None, "21 02:00"),  # never run, unpaused in the night after its time
        ("20 02:30", "19 02:00", "20 02:00"),  # the scheduler was down for half an hour
        ("20 03:00", "19 02:00", "20 02:00"),  # for an hour
        ("20 03:01", "19 02:00", "21 02:00"),  # for longer
        ("20 02:00", "19 02:00", "20 02:00"),  # at the very minute
    ],
)
def test_a_nightly_recipe_is_due_at_its_time_and_at_no_missed_one(
    set_clock: SetClock, now: str, last: str | None, due: str
) -> None:
    set_clock(now)
    assert next_run(last) == at(due)


@pytest.mark.parametrize(("cron", "due"), [("0 * * * *", "20 12:00"), ("*/15 * * * *", "20 12:30")])
def test_of_several_missed_times_only_one_within_the_hour_is_kept(
    set_clock: SetClock, cron: str, due: str
) -> None:
    set_clock("20 12:37")
    assert next_run("17 02:00", cron) == at(due)


def test_a_weekly_recipe_waits_for_its_day(set_clock: SetClock) -> None:
    set_clock("20 12:00")  # a Tuesday
    assert next_run("05 02:00", "0 2 * * 1") == at("26 02:00")


def test_no_run_is_due_after_the_last_day(set_clock: SetClock) -> None:
    set_clock("20 12:00")
    assert next_run("17 02:00", latest="20 23:00") is None
    assert next_run("17 02:00", latest="22 23:00") == at("21 02:00")


def test_a_backfill_gets_the_nights_that_somebody_asks_for(set_clock: SetClock) -> None:
    set_clock("20 12:00")
    first, last = timezone.coerce_datetime(at("10 00:00")), timezone.coerce_datetime(at("12 00:00"))
    asked = TimeRestriction(earliest=first, latest=last, catchup=True)
    timetable, runs = NightlyTimetable("0 2 * * *", timezone="UTC"), []
    interval = None
    while info := timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=asked):
        interval = info.data_interval
        runs.append(info.run_after)
    assert runs == [at("10 02:00"), at("11 02:00")]


def test_the_timetable_survives_its_way_through_airflows_database() -> None:
    restored = NightlyTimetable.deserialize(NightlyTimetable("5 2 * * *", timezone="UTC").serialize())
    assert type(restored) is NightlyTimetable
    assert restored.summary == "5 2 * * *"
