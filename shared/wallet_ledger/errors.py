"""Errors that say what the caller must do. Business answers are values, never exceptions."""


class InvalidMessage(Exception):
    """Final: this input can never be processed. HTTP answers 400, a consumer hands it to triage.

    The text names the field and the rule, never the value: it is logged.
    """


class Unavailable(Exception):
    """Not now: a dependency throttles, conflicts or does not answer. 503, or redelivery.

    `code` is the dependency's own error code, for the log.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
