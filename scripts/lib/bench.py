"""What the benches share: the manager, its API over the unix socket, time and numbers."""

import hashlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

SOCKET = "/run/gvm/api.sock"
LOG = "/run/gvm-serve.log"


def say(text):
    print(text, file=sys.stderr, flush=True)


class Unix(http.client.HTTPConnection):
    """One connection to the manager, kept open."""

    def __init__(self):
        super().__init__("gvm")

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(SOCKET)

    def ask(self, method, path, body=None):
        self.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
        answer = self.getresponse()
        return answer.status, answer.read()

    def status(self, method, path, body=None):
        return self.ask(method, path, body)[0]

    def call(self, method, path, body=None):
        """The answer as text; anything but success ends the bench."""
        status, text = self.ask(method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {text.decode()}")
        return text

    def json(self, method, path, body=None):
        return json.loads(self.call(method, path, body))


class Manager:
    """A running gvm serve."""

    def __init__(self, binary):
        self.binary = binary
        os.makedirs("/run/gvm", exist_ok=True)
        self.child = None
        self.start()

    def start(self):
        """Seconds from the start of the process to the first answer on /v1/version."""
        with open(LOG, "ab") as log:
            begin = time.monotonic()
            self.child = subprocess.Popen([self.binary, "serve"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while True:
            try:
                Unix().call("GET", "/v1/version")
                return time.monotonic() - begin
            except OSError:
                if self.child.poll() is not None or time.monotonic() - begin > 60:
                    raise SystemExit("the manager does not start:\n" + open(LOG).read()[-2000:]) from None
                time.sleep(0.005)

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(60)

    def gvm(self, *args):
        """Runs the command line; what it prints as JSON."""
        done = subprocess.run([self.binary, "-o", "json", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"gvm {' '.join(args)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def rss_mib(self):
        with open(f"/proc/{self.child.pid}/status") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        return kib / 1024

    def settle_accelerator(self):
        """Waits until the manager has found out what runs guests: it does so by running one."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            findings = Unix().json("GET", "/v1/doctor")["findings"]
            kvm = next(f for f in findings if f["check"] == "kvm")
            if kvm["level"] == "ok" or "not proven" not in kvm["message"]:
                return "kvm" if kvm["level"] == "ok" else "emulation"
            time.sleep(0.2)
        return "emulation"


def calibration_ms():
    """A fixed piece of work: tells how fast, or how busy, the machine is."""
    block = bytes(1 << 20)
    begin = time.monotonic()
    digest = hashlib.sha256()
    for _ in range(256):
        digest.update(block)
    return (time.monotonic() - begin) * 1000


def median(values):
    return statistics.median(values)


def result(**numbers):
    """The last line."""
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in numbers.items()}
    print(json.dumps(rounded), flush=True)
