"""Who gets a token, what a token is good for, and how an agent is shut out (docs/security.md)."""

import httpx
import pytest

from wakala import agents
from wakala.stack import Stack

PASSWORD = "Long-enough-1-password!"


def _tokens(stack: Stack, flow: str, **parameters: str) -> dict[str, str]:
    answer = stack.cognito.initiate_auth(
        ClientId=stack.output("UserPoolClientId"),
        AuthFlow=flow,  # type: ignore[arg-type]  # one of the client's flows
        AuthParameters=parameters,
    )
    result = answer["AuthenticationResult"]
    names = ("IdToken", "AccessToken", "RefreshToken")
    return {name: str(result[name]) for name in names if name in result}  # type: ignore[literal-required]


def _status(stack: Stack, token: str) -> httpx.Response:
    return httpx.get(f"{stack.api_url}/tx/status/none", headers={"Authorization": token})


def test_of_an_agents_tokens_only_the_id_token_is_taken(stack: Stack) -> None:
    """C04."""
    agents.enroll(stack, "AG-100", PASSWORD)

    tokens = _tokens(stack, "USER_PASSWORD_AUTH", USERNAME="AG-100", PASSWORD=PASSWORD)

    assert _status(stack, tokens["IdToken"]).status_code == 404
    for name in ("AccessToken", "RefreshToken"):
        refused = _status(stack, tokens[name])
        assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHENTICATED"), name


def test_a_user_of_the_pool_who_is_no_agent_is_refused(stack: Stack) -> None:
    """C04."""
    pool = stack.output("UserPoolId")
    stack.cognito.admin_create_user(
        UserPoolId=pool, Username="clerk", TemporaryPassword=PASSWORD, MessageAction="SUPPRESS"
    )
    stack.cognito.admin_set_user_password(
        UserPoolId=pool, Username="clerk", Password=PASSWORD, Permanent=True
    )
    tokens = _tokens(stack, "USER_PASSWORD_AUTH", USERNAME="clerk", PASSWORD=PASSWORD)

    refused = _status(stack, tokens["IdToken"])

    assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHENTICATED")


def test_an_agent_that_is_shut_out_gets_no_new_token_and_the_last_one_lives_to_its_end(
    stack: Stack,
) -> None:
    agents.enroll(stack, "AG-101", PASSWORD)
    tokens = _tokens(stack, "USER_PASSWORD_AUTH", USERNAME="AG-101", PASSWORD=PASSWORD)
    assert _tokens(stack, "REFRESH_TOKEN_AUTH", REFRESH_TOKEN=tokens["RefreshToken"])
    pool = stack.output("UserPoolId")

    stack.cognito.admin_disable_user(UserPoolId=pool, Username="AG-101")
    stack.cognito.admin_user_global_sign_out(UserPoolId=pool, Username="AG-101")

    refused = stack.cognito.exceptions.NotAuthorizedException
    with pytest.raises(refused):
        _tokens(stack, "REFRESH_TOKEN_AUTH", REFRESH_TOKEN=tokens["RefreshToken"])
    with pytest.raises(refused):
        _tokens(stack, "USER_PASSWORD_AUTH", USERNAME="AG-101", PASSWORD=PASSWORD)
    assert _status(stack, tokens["IdToken"]).status_code == 404  # the gateway asks nobody
