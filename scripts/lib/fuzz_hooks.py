"""What schemathesis looks for beside its own checks, and what it tries beside its own ideas."""

import hashlib
import json
import os
from urllib.parse import unquote

import schemathesis

# In the names of others' things, which can be guessed, and in what nobody but their owner can know.
WORDS = [os.environ["GVM_CANARY"], os.environ["GVM_SECRET"]]
# Names and ids of others' things, by parameter of a path.
with open(os.environ["GVM_FOREIGN"]) as told:
    FOREIGN = json.load(told)
# The longest first: some are in others.
VALUES = sorted({value.lower() for values in FOREIGN.values() for value in values}, key=len, reverse=True)
# One's own record names what one asked for, also what one was refused.
OWN_RECORD = ("/v1/audit", "/v1/operations")


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Every third request is about another's thing."""
    if not path_parameters:
        return path_parameters
    dice = hashlib.sha256(repr(sorted(path_parameters.items())).encode()).digest()
    if dice[0] % 3:
        return path_parameters
    number = int.from_bytes(dice[1:3], "big")
    known = {name: values[number % len(values)] for name, values in FOREIGN.items() if values}
    return {name: known.get(name, value) for name, value in path_parameters.items()}


@schemathesis.check
def no_foreign_data(ctx, response, case):
    """No answer may name another's things unless the request did, and none may do anything with them."""
    with open(os.environ["GVM_COUNT"], "ab") as count:
        count.write(b".")
    request = response.request
    sent = f"{unquote(request.url)} {request.body!r} {request.headers}".lower()
    told = response.text.lower()
    if request.method == "GET" and case.path.startswith(OWN_RECORD):
        for value in VALUES:
            told = told.replace(value, "")
    for word in [*WORDS, *VALUES]:
        if word in told and word not in sent:
            raise AssertionError(f"another's data is in the answer: {response.text[:400]}")
    path = case.path_parameters or {}
    if response.status_code < 400 and any(value in FOREIGN.get(name, ()) for name, value in path.items()):
        raise AssertionError(f"another's thing was given away or changed: {response.text[:400]}")
