"""What schemathesis looks for beside its own checks, and what it tries beside its own ideas."""

import hashlib
import os

import schemathesis

# In the names of others' things, which can be guessed, and in what nobody but their owner can know.
CANARY, SECRET = os.environ["GVM_CANARY"], os.environ["GVM_SECRET"]
FOREIGN = {
    "vm": f"{CANARY}-vm-0-0.{CANARY}-0",
    "user": f"{CANARY}-1",
    "team": f"{CANARY}-team",
}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Every fourth request is about another's thing."""
    dice = hashlib.sha256(repr(sorted((path_parameters or {}).items())).encode()).digest()[0]
    if path_parameters and dice % 4 == 0:
        return {name: FOREIGN.get(name, value) for name, value in path_parameters.items()}
    return path_parameters


@schemathesis.check
def no_foreign_data(ctx, response, case):
    """No answer may name another's things unless the request did, and none may do anything with them."""
    with open(os.environ["GVM_COUNT"], "ab") as count:
        count.write(b".")
    request = response.request
    sent = f"{request.url} {request.body!r} {request.headers}".lower()
    told = response.text.lower()
    for word in (CANARY, SECRET):
        if word in told and word not in sent:
            raise AssertionError(f"another's data is in the answer: {response.text[:400]}")
    path = case.path_parameters or {}
    if response.status_code < 400 and any(path.get(name) == value for name, value in FOREIGN.items()):
        raise AssertionError(f"another's thing was given away or changed: {response.text[:400]}")
