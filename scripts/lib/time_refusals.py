"""time-refusals.sh, inside the private host: time_refusals.py BINARY SAMPLES."""

import os
import pathlib
import random
import statistics
import sys
import time

from bench import Manager, calibration_ms, median, result, say
from https import ADDRESS, CONFIG, Https

PERMUTATIONS = 2000
FOREIGN = 200
WARM_UP = 50

# Method, path with the place of the name, body.
QUESTIONS = {
    "vm_show": ("GET", "/v1/vms/{name}.other", None),
    "vm_start": ("POST", "/v1/vms/{name}.other/start", {}),
    "vm_of_nobody": ("GET", "/v1/vms/m1.{user}", None),
    "user_show": ("GET", "/v1/users/{user}", None),
    "team_show": ("GET", "/v1/teams/{team}", None),
}


def p_value(one, other):
    """How often chance alone makes the means differ as much: the share of random divisions that do."""
    dice = random.Random(1)
    seen = abs(statistics.fmean(one) - statistics.fmean(other))
    both, size = one + other, len(one)
    total, extreme = sum(both), 0
    for _ in range(PERMUTATIONS):
        part = sum(dice.sample(both, size))
        if abs(part / size - (total - part) / (len(both) - size)) >= seen:
            extreme += 1
    return (extreme + 1) / (PERMUTATIONS + 1)


def ask(api, question, foreign, number):
    method, path, body = question
    word = "m" if foreign else "x"
    path = path.format(name=f"{word}{number}", user=f"{'u' if foreign else 'x'}{number}", team=f"{'t' if foreign else 'x'}{number}")
    begin = time.perf_counter()
    status = api.status(method, path, body)
    took = time.perf_counter() - begin
    if status != 404:
        raise SystemExit(f"{method} {path}: {status}")
    return took


def main(binary, samples):
    os.makedirs("/etc/gvm", exist_ok=True)
    pathlib.Path("/etc/gvm/gvm.toml").write_text(CONFIG)
    manager = Manager(binary)
    gvm = manager.gvm
    for user in ("other", "mallory"):
        gvm("user", "add", user)
    token = gvm("token", "create", "o", "--user", "other")["token"]
    api = Https(token)
    for number in range(FOREIGN):
        api.call("POST", "/v1/vms", {"name": f"m{number}", "profile": "firmware", "is_stopped": True})
        gvm("user", "add", f"u{number}")
        gvm("team", "add", f"t{number}")
    api = Https(gvm("token", "create", "m", "--user", "mallory")["token"])
    # The machines are defined by now, or soon; their makers must not disturb.
    time.sleep(5)
    dice, numbers, before = random.Random(2), {}, calibration_ms()
    for name, question in QUESTIONS.items():
        turns = [True, False] * samples
        dice.shuffle(turns)
        for turn in range(WARM_UP):
            ask(api, question, bool(turn % 2), turn)
        times = {True: [], False: []}
        for foreign in turns:
            times[foreign].append(ask(api, question, foreign, dice.randrange(FOREIGN)))
        p = p_value(times[True], times[False])
        difference = (median(times[True]) - median(times[False])) * 1e6
        say(f"{name}: p = {p:.3f}, medians differ by {difference:.0f} us of {median(times[False]) * 1000:.1f} ms")
        numbers[f"p_{name}"] = p
    manager.stop()
    lowest = min(1.0, min(numbers.values()) * len(numbers))
    result(p_min=lowest, samples=samples, calibration_ms=[round(before), round(calibration_ms())], **numbers)
    if lowest <= 0.01:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
