"""An environment of the tests' own, whoever runs them and from wherever."""

import os

FOREIGN = ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN")
OWN = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_XRAY_SDK_ENABLED": "false",
    "POWERTOOLS_SERVICE_NAME": "test",
    "POWERTOOLS_METRICS_NAMESPACE": "Wakala",
}


def enter() -> None:
    """Before any module of ours is imported: telemetry and botocore read these at import."""
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(OWN)
