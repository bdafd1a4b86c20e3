"""The options that commands share: how to answer, and which stack is meant."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from wakala.stack import DEFAULT_STACK, Stack, Where, open_stack

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[Flag, Parameter(name="--json", help="Print JSON, for a script.")]
StackName = Annotated[str, Parameter(env_var="WAKALA_STACK", help="Name of the stack.")]
Amount = Annotated[str, Parameter(allow_leading_hyphen=True)]


@Parameter(name="*", group="Which stack")
@dataclass(frozen=True, slots=True)
class On:
    """Which stack a command means: the local engine's, unless a profile or region says AWS."""

    stack: StackName = DEFAULT_STACK
    profile: Annotated[
        str | None, Parameter(env_var="WAKALA_PROFILE", help="AWS profile of the stack's account.")
    ] = None
    region: Annotated[
        str | None, Parameter(env_var="WAKALA_REGION", help="AWS Region of the stack.")
    ] = None

    def open(self) -> Stack:
        """The deployed stack."""
        return open_stack(Where(self.stack, self.profile, self.region))


LOCAL = On()
