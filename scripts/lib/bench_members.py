"""bench-members.sh, inside the private host: bench_members.py BINARY USERS ENTRIES."""

import hashlib
import os
import pathlib
import re
import sqlite3
import subprocess
import sys
import time
import uuid

from bench import Manager, calibration_ms, result, say
from https import ADDRESS, CONFIG, Https

MACHINES = 5
RUNS = 3
SECONDS = 15
CONNECTIONS = 8
DEADLINE = 300
DATABASE = "/var/lib/gvm/gvm.db"
# Of src/model/record.rs, as the texts of an entry are.
CONTEXT = b"gvm record entry 1\n"
TEXTS = ("operation half actor actor_id via address request_id action target vm_id outcome detail").split()
BATCH = 50_000
UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


def add_people(manager, count):
    """Gives the name of one in the middle: a service account, for which an administrator may make a token."""
    path, owner = pathlib.Path("/run/people.csv"), count // 2
    kind = {owner: "service"}
    rows = (f'student{n},"Student, {n}",class{n % 20},{kind.get(n, "person")}\n' for n in range(count))
    path.write_text("name,full_name,teams,kind\n" + "".join(rows))
    for n in range(20):
        manager.gvm("team", "add", f"class{n}")
    begin = time.monotonic()
    manager.gvm("user", "import", str(path))
    say(f"{count} people are known ({time.monotonic() - begin:.0f} s)")
    return f"student{owner}"


def make_machines(api):
    for number in range(MACHINES):
        api.call("POST", "/v1/vms", {"name": f"m{number}", "profile": "firmware", "is_stopped": True})
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        states = [vm["state"] for vm in api.call("GET", "/v1/vms")["vms"]]
        if states.count("stopped") == MACHINES:
            return
        time.sleep(0.5)
    raise SystemExit(f"of {MACHINES} machines {states.count('stopped')} are defined")


def entries(seq, last, count):
    """So many entries behind the last: what people do, chained as the manager chains them; `gvm audit verify` will tell."""
    vm, user = str(uuid.uuid4()), str(uuid.uuid4())
    at = time.time_ns() // 1000
    for seq in range(seq + 1, seq + count + 1):
        texts = (str(uuid.UUID(int=seq)), "whole", "student-of-the-course", user,
                 "key:SHA256:uNiVztksCsDhcc0u9e8BrrLNe6QWqGHVjBPJGBBKPU8", f"192.0.2.{seq % 250}", vm, "vm.start",
                 f"machine-{seq % 1000}.student", vm, "success", "")
        encoded = b"".join(b"\1" + len(text).to_bytes(8, "big") + text.encode() for text in texts)
        last = hashlib.sha256(CONTEXT + last + seq.to_bytes(8, "big") + at.to_bytes(8, "big") + encoded).digest()
        yield seq, at, *texts, last.hex()


def fill_record(count):
    """The manager is not running."""
    begin = time.monotonic()
    base = sqlite3.connect(DATABASE, isolation_level=None)
    insert = f"INSERT INTO record (seq, at, {', '.join(TEXTS)}, hash) VALUES ({', '.join('?' * (len(TEXTS) + 3))})"
    seq, last = base.execute("SELECT seq, hash FROM record_tip").fetchone()
    while seq < count:
        base.execute("BEGIN IMMEDIATE")
        batch = list(entries(seq, bytes.fromhex(last), min(BATCH, count - seq)))
        base.executemany(insert, batch)
        seq, last = batch[-1][0], batch[-1][-1]
        base.execute("UPDATE record_tip SET seq = ?, hash = ?", (seq, last))
        base.execute("COMMIT")
    base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    base.close()
    say(f"the record has {seq} entries ({time.monotonic() - begin:.0f} s)")


def load(token):
    """Answers a second, and milliseconds by share of the answers; anything but success ends the bench."""
    done = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "--latency", "-H", f"authorization: Bearer {token}",
         f"https://{ADDRESS}/v1/vms"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"wrk: {done.stdout}{done.stderr}")
    per_s = float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1])
    shares = {int(share): float(number) * UNITS[unit]
              for share, number, unit in re.findall(r"^\s+(\d+)%\s+([\d.]+)(us|ms|s)$", done.stdout, re.M)}
    say(f"{per_s:.0f} answers a second, p50 {shares[50]:.2f} ms, p99 {shares[99]:.2f} ms")
    return per_s, shares[50], shares[99]


def verify(manager):
    """Entries that `gvm audit verify` gets through in a second."""
    begin = time.monotonic()
    verdict = manager.gvm("audit", "verify")
    per_s = verdict["last"] / (time.monotonic() - begin)
    say(f"the record is what was written, up to entry {verdict['last']}: {per_s:.0f} entries a second")
    return per_s


def main(binary, users, count):
    os.makedirs("/etc/gvm", exist_ok=True)
    pathlib.Path("/etc/gvm/gvm.toml").write_text(CONFIG)
    manager = Manager(binary)
    owner = add_people(manager, users)
    token = manager.gvm("token", "create", "bench", "--user", owner)["token"]
    make_machines(Https(token))
    manager.stop()
    fill_record(count)
    manager.start()
    manager.settle_accelerator()
    listed = Https(token).call("GET", "/v1/vms")["vms"]
    if len(listed) != MACHINES or {vm["owner"] for vm in listed} != {owner}:
        raise SystemExit(f"the answer is not the machines of {owner}: {listed}")
    before = calibration_ms()
    runs = sorted(load(token) for _ in range(RUNS))
    verified = verify(manager)
    after = calibration_ms()
    rss_mib = manager.rss_mib()
    manager.stop()
    per_s, p50_ms, p99_ms = runs[RUNS // 2]
    result(
        per_s=per_s,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        per_s_runs=[round(run[0]) for run in runs],
        verify_rows_per_s=round(verified),
        rss_mib=rss_mib,
        users=users,
        rows=count,
        machines=MACHINES,
        connections=CONNECTIONS,
        calibration_ms=[round(before), round(after)],
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
