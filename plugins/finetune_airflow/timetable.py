"""A cron schedule that never makes up for a night that was missed."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import timezone
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

# A scheduler that was down for less than this still starts the night's run.
GRACE = timedelta(hours=1)


class NightlyTimetable(CronTriggerTimetable):
    """Runs at each time of a cron expression, unless that time passed more than an hour ago.

    Airflow's own timetable starts the last missed run at once when a DAG is unpaused, which costs TPU hours that nobody
    asked for.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next run: that of the timetable, or the first one that is not too late.

        A backfill, which somebody asks for, gets every run between its two dates (``restriction.catchup``).
        """
        planned = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        oldest = timezone.coerce_datetime(timezone.utcnow() - GRACE)
        if planned is None or restriction.catchup or planned.run_after >= oldest:
            return planned
        start = self._align_to_next(oldest)
        if restriction.latest is not None and restriction.latest < start:
            return None
        return DagRunInfo.interval(timezone.coerce_datetime(start - self._interval), start)
