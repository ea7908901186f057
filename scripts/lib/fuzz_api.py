"""fuzz-api.sh, inside the private host: fuzz_api.py BINARY SCHEMATHESIS ROOT SECONDS."""

import os
import pathlib
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


def others(manager):
    """A world of other people's things, each of them with the word in its name."""
    gvm = manager.gvm
    gvm("team", "add", f"{CANARY}-team")
    for number in range(5):
        user = f"{CANARY}-{number}"
        gvm("user", "add", user, "--full-name", f"{SECRET} {number}")
        gvm("team", "add-member", f"{CANARY}-team", user)
        token = gvm("token", "create", f"{SECRET}-token-{number}", "--user", user)["token"]
        api = Https(token)
        for vm in range(3):
            api.call("POST", "/v1/vms", {
                "name": f"{CANARY}-vm-{number}-{vm}", "profile": "firmware", "is_stopped": True, "tags": [f"{SECRET}-tag"],
            })
        key = subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{SECRET}-key", "-f", f"/run/key-{number}"],
                             check=True, stdin=subprocess.DEVNULL)
        assert key.returncode == 0
        api.call("POST", "/v1/keys", {"public_key": pathlib.Path(f"/run/key-{number}.pub").read_text()})


def main(binary, schemathesis, root, seconds):
    os.makedirs("/etc/gvm", exist_ok=True)
    pathlib.Path("/etc/gvm/gvm.toml").write_text(CONFIG + QUOTA)
    manager = Manager(binary)
    others(manager)
    manager.gvm("user", "add", "mallory")
    token = manager.gvm("token", "create", "fuzz", "--user", "mallory")["token"]
    for vm in ("mine", "mine-too"):
        Https(token).call("POST", "/v1/vms", {"name": vm, "profile": "firmware", "is_stopped": True})
    say("the manager is full; now the requests")
    report = "/run/fuzz-report"
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "fuzz_hooks",
        "PYTHONPATH": f"{root}/scripts/lib",
        "GVM_CANARY": CANARY,
        "GVM_SECRET": SECRET,
        "GVM_COUNT": "/run/fuzz-count",
    }
    done = subprocess.run([
        schemathesis, "run", f"{root}/docs/api.json", "--url", f"https://{ADDRESS}", "--tls-verify", "false",
        "--header", f"Authorization: Bearer {token}", "--max-time", str(seconds), "--continue-on-failure",
        "--exclude-path-regex", STREAMS, "--request-timeout", "40", "--workers", "2", "--suppress-health-check", "all",
        "--phases", "examples,coverage,fuzzing", "--seed", "1", "--warnings", "off", "--no-color",
        # What the manager makes of values that fit the description is not all in it: a name may be taken, a profile not there.
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
                    "response_schema_conformance,unsupported_method,ignored_auth,no_foreign_data",
        "--report", "junit", "--report-junit-path", report,
    ], env=environment, cwd="/run", stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
    requests = os.path.getsize("/run/fuzz-count") if os.path.exists("/run/fuzz-count") else 0
    if manager.child.poll() is not None:
        raise SystemExit("the manager died:\n" + open(LOG).read()[-4000:])
    manager.stop()
    log = open(LOG).read()
    panics = log.count("panicked at")
    result(failures=int(done.returncode != 0), requests=requests, panics=panics, seconds=seconds)
    if done.returncode or panics or not requests:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
