"""The fine-tuning pipeline itself: plain Python that never imports Airflow."""
