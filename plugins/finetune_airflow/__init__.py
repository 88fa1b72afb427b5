"""The pipeline's Airflow face: thin operators, sensors and triggers over ``finetune``."""
