"""Bearer tokens are not accepted: Partita does not validate JSON Web Tokens.

The refusal has the form that the version of the client understands, so that its credential
fails instead of retrying.
"""

from partita.errors import NotAuthorizedError
from partita.service.auth.shared_key import authentication_failed
from partita.service.http.request import Request

CHALLENGE_VERSION_MIN = "2020-12-06"
"""The first API version whose clients read a challenge."""

_SETTING = "credential"
_HINT = "Bearer tokens are not accepted: use an account key or a SAS."


def challenge(request: Request, tenant: str = "common") -> NotAuthorizedError:
    """Return the refusal of an `Authorization: Bearer` header.

    If the facts contain `www_authenticate`, the answer is a 401 with that header.
    """
    if request.headers.get("x-ms-version", "") < CHALLENGE_VERSION_MIN:
        return authentication_failed(hint=_HINT, setting=_SETTING)
    return NotAuthorizedError(
        "InvalidAuthenticationInfo",
        "Server failed to authenticate the request. Please refer to the information in the"
        " www-authenticate header.",
        facts={
            "www_authenticate": "Bearer"
            f" authorization_uri=https://login.microsoftonline.com/{tenant}/oauth2/authorize"
            " resource_id=https://storage.azure.com",
        },
        hint=_HINT,
        setting=_SETTING,
    )
