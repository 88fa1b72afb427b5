"""The name under which the parts of an Airflow on one machine find each other."""

LOOPBACK = "127.0.0.1"


def loopback() -> str:
    """Return the loopback address: a machine's full name need not resolve to the machine itself."""
    return LOOPBACK
