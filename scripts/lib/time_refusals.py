"""time-refusals.sh, inside the private host: time_refusals.py BINARY SAMPLES."""

import base64
import concurrent.futures
import os
import pathlib
import random
import statistics
import sys
import time
import uuid

from bench import Manager, Unix, calibration_ms, median, result, say
from https import ADDRESS, CONFIG, Https

PERMUTATIONS = 5000
FOREIGN = 200
FEW = 20
WARM_UP = 50
# A refusal waits for most of its time, so that several questions are asked side by side.
SIDE_BY_SIDE = 4
CONFIG_OF_OTHER = """
[people.quota]
vms = 1000
memory = 1048576
disk = 10485760
"""

# Method, path, body; the words in braces stand for what is another's or nobody's.
QUESTIONS = {
    "vm_show": ("GET", "/v1/vms/{vm}.other", None),
    "vm_id": ("GET", "/v1/vms/{vm_id}", None),
    "vm_start": ("POST", "/v1/vms/{vm}.other/start", {}),
    "vm_of_nobody": ("GET", "/v1/vms/m1.{user}", None),
    "user_show": ("GET", "/v1/users/{user}", None),
    "user_quota": ("GET", "/v1/users/{user}/quota", None),
    "team_show": ("GET", "/v1/teams/{team}", None),
    "team_quota": ("GET", "/v1/teams/{team}/quota", None),
    "token_revoke": ("DELETE", "/v1/tokens/{token}", None),
    "operation": ("GET", "/v1/operations/{operation}", None),
    "record": ("GET", "/v1/audit?vm={vm}.other", None),
    # As the gateway asks: the key of somebody suspended, or nobody's; a stranger's VM by a member's key.
    "gateway_identify": ("POST", "/v1/gateway/identify", {"public_key": "{key}"}),
    "gateway_target": ("POST", "/v1/gateway/target", {
        "public_key": "{own_key}", "vm": "{vm}.other", "guest_user": None, "mode": "terminate", "peer": "192.0.2.1:22"}),
}
SOCKET_ONLY = ("gateway_identify", "gateway_target")


def made_up_key():
    """A public key of the right form; nobody has the other half."""
    kind, body = b"ssh-ed25519", os.urandom(32)
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, body))
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


def ranks(values):
    """The place of each value in order, equal ones in the middle of theirs: one slow answer weighs no more than another."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed, begin = [0.0] * len(values), 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for index in order[begin:end]:
            placed[index] = (begin + end - 1) / 2
        begin = end
    return placed


def p_value(one, other):
    """How often chance alone makes the ranks differ as much: the share of random divisions that do."""
    dice = random.Random(1)
    both, size = ranks(one + other), len(one)
    # As many on each side, so the sum of one side says it all.
    middle = sum(both) / 2
    seen = abs(sum(both[:size]) - middle)
    extreme = sum(abs(sum(dice.sample(both, size)) - middle) >= seen for _ in range(PERMUTATIONS))
    return (extreme + 1) / (PERMUTATIONS + 1)


def visible_us(times):
    """The shift of all answers that stands out from chance by three standard errors, from the spread of the middle half."""
    errors = []
    for part in times.values():
        low, _, high = statistics.quantiles(part, n=4)
        # Of a median, as of a normal distribution with that middle half.
        errors.append((1.253 * (high - low) / 1.349) ** 2 / len(part))
    return 3e6 * sum(errors) ** 0.5


def ask(api, question, values, number):
    """Seconds until the answer is there, and its status."""
    method, path, body = question
    values = {name: those[number % len(those)] for name, those in values.items()}
    if body is not None:
        body = {name: value.format(**values) if isinstance(value, str) else value for name, value in body.items()}
    path = path.format(**values)
    begin = time.perf_counter()
    status = api.status(method, path, body)
    return time.perf_counter() - begin, status


def fill(manager):
    """Other people's things, and as many that are nobody's: {True: another's, False: nobody's}, each by its kind."""
    gvm, root = manager.gvm, Unix()
    for user in ("other", "mallory"):
        # An administrator makes tokens for service accounts only; to the policy they are members.
        gvm("user", "add", user, "--service")
    api = Https(gvm("token", "create", "o", "--user", "other")["token"])
    own_key = made_up_key()
    root.call("POST", "/v1/users/mallory/keys", {"public_key": own_key})
    theirs = {"vm": [], "vm_id": [], "user": [], "team": [], "token": [], "key": []}
    for number in range(FOREIGN):
        api.call("POST", "/v1/vms", {"name": f"m{number}", "profile": "firmware", "is_stopped": True})
        root.call("POST", "/v1/users", {"name": f"u{number}"})
        root.call("POST", "/v1/teams", {"name": f"t{number}"})
        theirs["vm"].append(f"m{number}")
        theirs["user"].append(f"u{number}")
        theirs["team"].append(f"t{number}")
    for number in range(FEW):
        theirs["token"].append(gvm("token", "create", f"t{number}", "--user", "other")["info"]["id"])
        key = made_up_key()
        root.call("POST", f"/v1/users/u{number}/keys", {"public_key": key})
        root.call("POST", f"/v1/users/u{number}/suspend", {"why": "a key that leads to nobody"})
        theirs["key"].append(key)
    theirs["vm_id"] = [vm["id"] for vm in api.call("GET", "/v1/vms")["vms"]]
    theirs["operation"] = [operation["id"] for operation in api.call("GET", "/v1/operations")["operations"]]
    # The same length, and an id made at about the same time.
    nobodys = {kind: ["x" + name[1:] for name in theirs[kind]] for kind in ("vm", "user", "team")}
    for kind in ("vm_id", "token", "operation"):
        nobodys[kind] = [value[:-12] + uuid.uuid4().hex[:12] for value in theirs[kind]]
    nobodys["key"] = [made_up_key() for _ in theirs["key"]]
    for values in (theirs, nobodys):
        values["own_key"] = [own_key]
    return {True: theirs, False: nobodys}


def measure(name, token, things, samples):
    """The times of a question: {True: about another's thing, False: about nobody's}."""
    dice, question = random.Random(name), QUESTIONS[name]
    api = Unix() if name in SOCKET_ONLY else Https(token)
    turns = [True, False] * samples
    dice.shuffle(turns)
    for turn in range(WARM_UP):
        ask(api, question, things[bool(turn % 2)], turn)
    times, statuses = {True: [], False: []}, set()
    for foreign in turns:
        took, status = ask(api, question, things[foreign], dice.randrange(FOREIGN))
        times[foreign].append(took)
        statuses.add(status)
    if len(statuses) != 1 or statuses.pop() not in (403, 404):
        raise SystemExit(f"{name}: the answers are not one refusal")
    return times


def main(binary, samples):
    os.makedirs("/etc/gvm", exist_ok=True)
    pathlib.Path("/etc/gvm/gvm.toml").write_text(CONFIG + CONFIG_OF_OTHER)
    manager = Manager(binary)
    things = fill(manager)
    token = manager.gvm("token", "create", "m", "--user", "mallory")["token"]
    # The machines are defined by now, or soon; their makers must not disturb.
    time.sleep(5)
    numbers, before = {}, calibration_ms()
    with concurrent.futures.ProcessPoolExecutor(SIDE_BY_SIDE) as pool:
        asked = {name: pool.submit(measure, name, token, things, samples) for name in QUESTIONS}
        for name, answers in asked.items():
            times = answers.result()
            numbers[f"p_{name}"] = p = p_value(times[True], times[False])
            difference = (median(times[True]) - median(times[False])) * 1e6
            say(f"{name}: p = {p:.4f}, medians differ by {difference:.0f} us of {median(times[False]) * 1000:.2f} ms; "
                f"a shift of {visible_us(times):.0f} us would be seen")
    manager.stop()
    lowest = min(1.0, min(numbers.values()) * len(numbers))
    result(p_min=lowest, samples=samples, calibration_ms=[round(before), round(calibration_ms())], **numbers)
    if lowest <= 0.01:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
