# The image of every Airflow service: the locked packages, then the product.
FROM python:3.12-slim-bookworm

RUN useradd --uid 50000 --create-home finetune \
    && install -d -o finetune /opt/finetune /var/lib/finetune /var/lib/airflow
WORKDIR /opt/finetune
USER finetune

# The very lock that `make setup` installs, in the same way; only a change of it installs anew.
COPY --chown=finetune requirements.txt pyproject.toml ./
COPY --chown=finetune scripts/ scripts/
RUN PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 scripts/setup.sh requirements.txt

COPY --chown=finetune include/ include/
COPY --chown=finetune plugins/ plugins/
COPY --chown=finetune dags/ dags/

ENV PATH=/opt/finetune/.venv/bin:$PATH \
    PYTHONPATH=/opt/finetune/include \
    AIRFLOW_HOME=/var/lib/airflow \
    FINETUNE_HOME=/var/lib/finetune \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/finetune/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/finetune/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=false
VOLUME ["/var/lib/finetune", "/var/lib/airflow"]
ENTRYPOINT ["airflow"]
