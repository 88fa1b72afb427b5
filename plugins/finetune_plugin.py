"""What Airflow loads of the pipeline as a plugin."""

from airflow.plugins_manager import AirflowPlugin

from finetune_airflow.timetable import NightlyTimetable


class FinetunePlugin(AirflowPlugin):
    """Registers the timetable of scheduled recipes."""

    name = "finetune"
    timetables = [NightlyTimetable]  # noqa: RUF012
