"""The forms that names and addresses must have, each with the words that explain it."""

from __future__ import annotations

from collections.abc import Mapping

NAME = r"^[a-z][a-z0-9-]{0,50}$"
HUB_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"
"""As the Hugging Face Hub allows it (huggingface_hub's ``validate_repo_id``)."""

PROJECT = r"^(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$"
RESOURCE = r"^[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?$"
"""A Compute Engine resource name (RFC 1035)."""

RESERVATION = (
    r"^(?:projects/[^/\s]+/reservations/)?[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?(?:/reservationBlocks/[^/\s]+)?$"
)
ACCOUNT = r"^[^@\s]+@[^@\s]+\.[^@\s]+$"
GCS_URI = r"^gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](?:/[^\s]*)?$"

WORDS: Mapping[str, str] = {
    NAME: "lower-case letters, digits and hyphens, a letter first, at most 51 characters",
    HUB_ID: "`owner/name`, as on the Hugging Face Hub",
    PROJECT: "a Google Cloud project's ID: 6 to 30 lower-case letters, digits and hyphens",
    RESOURCE: "lower-case letters, digits and hyphens, a letter first, at most 63 characters",
    RESERVATION: "a reservation's name, or projects/<project>/reservations/<name>",
    ACCOUNT: "a service account's e-mail address",
    GCS_URI: "gs://<bucket>/<folder>",
}
"""What to say where a text does not have its form."""
