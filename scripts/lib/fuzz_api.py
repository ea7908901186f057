"""fuzz-api.sh, inside the private host: fuzz_api.py BINARY SCHEMATHESIS ROOT SECONDS SEED."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys

from bench import LOG, Manager, result, say
from https import ADDRESS, CONFIG, Https

QUOTA = """
[people.quota]
vms = 20
memory = 2048
disk = 20480
"""
# Streams have no end, and a backup is for administrators.
STREAMS = "/(events|console)$"
# In the names of others' things, and in what only they know: no answer may have the words unless the request had them.
CANARY = "canary"
SECRET = "zebra"
PEOPLE = 5
FOREIGN = "/run/fuzz-foreign.json"


def others(manager):
    """A world of other people's things, each with the word in its name. Names and ids to try, by parameter of a path."""
    gvm = manager.gvm
    foreign = {"vm": [], "user": [], "team": [f"{CANARY}-team"], "token": [], "key": [], "id": []}
    foreign["team"].append(gvm("team", "add", f"{CANARY}-team")["id"])
    for number in range(PEOPLE):
        user = f"{CANARY}-{number}"
        foreign["user"] += [user, gvm("user", "add", user, "--service", "--full-name", f"{SECRET} {number}")["id"]]
        gvm("team", "add-member", f"{CANARY}-team", user)
        made = gvm("token", "create", f"{SECRET}-token-{number}", "--user", user)
        foreign["token"] += [made["info"]["id"]]
        api = Https(made["token"])
        for vm in range(3):
            name = f"{CANARY}-vm-{number}-{vm}"
            api.call("POST", "/v1/vms", {"name": name, "profile": "firmware", "is_stopped": True, "tags": [f"{SECRET}-tag"]})
            foreign["vm"] += [f"{name}.{user}", api.call("GET", f"/v1/vms/{name}")["id"]]
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{SECRET}-key", "-f", f"/run/key-{number}"],
                       check=True, stdin=subprocess.DEVNULL)
        key = api.call("POST", "/v1/keys", {"public_key": pathlib.Path(f"/run/key-{number}.pub").read_text()})
        foreign["key"].append(key["fingerprint"])
        foreign["id"] += [operation["id"] for operation in api.call("GET", "/v1/operations")["operations"]]
    return foreign


def strangers(root):
    """How many operations answer who does not say who they are with anything but 401, or without its header."""
    described, faults = json.loads(pathlib.Path(f"{root}/docs/api.json").read_text()), 0
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if operation.get("security") == []:
                continue
            asked = Https(None).answer(method.upper(), re.sub("{.*?}", "x", path))
            if asked.status != 401 or not asked.getheader("www-authenticate"):
                say(f"{method} {path} without a token: {asked.status}")
                faults += 1
    return faults


# What a generator does not think of. Bodies that nothing can be made of, and words that are no name or id of anything.
ODD_BODIES = {
    "deep": b'{"name":' + b"[" * 100_000, "deep object": b'{"name":' * 10_000, "NUL": b'{"name":"a\\u0000b"}',
    "half a pair": b'{"name":"\\ud800"}', "no UTF-8": b'{"name":"\xff\xfe"}', "huge number": b'{"name":1e999999,"limit":1e999999}',
    "huge integer": b'{"name":' + b"9" * 5000 + b"}", "too long": b'{"name":"' + b"a" * 3_000_000 + b'"}', "an array": b"[]",
    "twice": b'{"name":"a","name":"b"}', "cut off": b'{"name":"a', "white": b" " * 1000, "a word": b"null",
}
ODD_WORDS = ["%00", "%ff%fe", "..%2f..%2fetc", "%F0%9F%92%BE", "a" * 8000, "a.b.c", ".", "%20", "-1", "%25s", "%0d%0aX-A:%20b",
             "00000000-0000-0000-0000-000000000000", "%D0%B0dmin", "'%20OR%201=1--"]


def odd(token, root):
    """How many faults and answers that are no answer of the API odd requests bring. And how many there were."""
    described, faults, requests = json.loads(pathlib.Path(f"{root}/docs/api.json").read_text()), 0, 0
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}

    def look(what, method, path, body=None):
        nonlocal faults, requests
        api = Https(token)
        requests += 1
        try:
            api.request(method, path, body, headers)
            answer = api.getresponse()
            status, text = answer.status, answer.read()
            is_fault = status >= 500 or (status >= 400 and "code" not in json.loads(text))
        except (OSError, http.client.HTTPException, ValueError) as error:
            # A body that is too long may be refused before it is all sent.
            is_fault, status = what != "too long", repr(error)
        if is_fault:
            say(f"{method} {path[:80]}: {what}: {status}")
            faults += 1

    for path, operations in described["paths"].items():
        if re.search(STREAMS, path):
            continue
        for method, operation in operations.items():
            if "requestBody" in operation:
                for what, body in ODD_BODIES.items():
                    look(what, method.upper(), re.sub("{.*?}", "mine", path), body)
            if "{" in path:
                for word in ODD_WORDS:
                    look("an odd word", method.upper(), re.sub("{.*?}", word, path), b"{}" if "requestBody" in operation else None)
    return faults, requests


def main(binary, schemathesis, root, seconds, seed):
    os.makedirs("/etc/gvm", exist_ok=True)
    pathlib.Path("/etc/gvm/gvm.toml").write_text(CONFIG + QUOTA)
    manager = Manager(binary)
    foreign = others(manager)
    pathlib.Path(FOREIGN).write_text(json.dumps(foreign))
    # An administrator makes tokens for service accounts only; to the policy they are members.
    manager.gvm("user", "add", "mallory", "--service")
    token = manager.gvm("token", "create", "fuzz", "--user", "mallory")["token"]
    for vm in ("mine", "mine-too"):
        Https(token).call("POST", "/v1/vms", {"name": vm, "profile": "firmware", "is_stopped": True})
    open_doors = strangers(root)
    odd_faults, odd_requests = odd(token, root)
    say("the manager is full; now the requests")
    report = "/run/fuzz-report"
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "fuzz_hooks",
        "PYTHONPATH": f"{root}/scripts/lib",
        "GVM_CANARY": CANARY,
        "GVM_SECRET": SECRET,
        "GVM_FOREIGN": FOREIGN,
        "GVM_COUNT": "/run/fuzz-count",
    }
    done = subprocess.run([
        schemathesis, "run", f"{root}/docs/api.json", "--url", f"https://{ADDRESS}", "--tls-verify", "false",
        "--header", f"Authorization: Bearer {token}", "--max-time", str(seconds), "--continue-on-failure",
        "--exclude-path-regex", STREAMS, "--request-timeout", "40", "--workers", "2", "--suppress-health-check", "all",
        "--phases", "examples,coverage,fuzzing", "--seed", str(seed), "--warnings", "off", "--no-color",
        # What the manager makes of values that fit the description is not all in it: a name may be taken, a profile not there.
        # Wrong tokens by the hundred are stopped by the brake on failed logins; strangers() looks at each operation once.
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
                    "response_schema_conformance,unsupported_method,"
                    "allow_header_conformance,no_foreign_data",
        "--report", "junit", "--report-junit-path", report,
    ], env=environment, cwd="/run", stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
    requests = os.path.getsize("/run/fuzz-count") if os.path.exists("/run/fuzz-count") else 0
    if manager.child.poll() is not None:
        raise SystemExit("the manager died:\n" + open(LOG).read()[-4000:])
    manager.stop()
    log = open(LOG).read()
    panics = log.count("panicked at")
    result(failures=int(done.returncode != 0), open_doors=open_doors, odd_faults=odd_faults, requests=requests + odd_requests, panics=panics, seconds=seconds, seed=seed)
    if done.returncode or open_doors or odd_faults or panics or not requests:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
