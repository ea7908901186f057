"""The measuring part of bench-gateway.sh, which see.

Everything is real but the manager: a stub answers on a unix socket whose a key is and where a name leads.
All clients use aes256-gcm and connections that stand already (OpenSSH's multiplexing), so that only the bulk
counts; the two sides of a pair run one after the other, and take turns in being first.
"""

import argparse
import json
import os
import pty
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer

CIPHER = "aes256-gcm@openssh.com"
KEYSTROKES = 300


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class World:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="gvm-bench-gateway-")
        self.children = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, name, command):
        log = open(self.path(name + ".log"), "wb")
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append(child)
        return child

    def wait_for(self, port, name):
        end = time.time() + 15
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.time() > end:
                    sys.exit(f"{name} does not start:\n" + open(self.path(name + ".log")).read())
                time.sleep(0.05)

    def close(self):
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    return " ".join(open(path + ".pub").read().split()[:2])


def start_sshd(world, name, keys):
    port = free_port()
    host_key = keygen(world.path(name + "_host"))
    open(world.path(name + "_keys"), "w").write("\n".join(keys) + "\n")
    config = world.path(name + "_config")
    open(config, "w").write(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {world.path(name)}_host\nCiphers {CIPHER}\nPidFile none\n"
        f"AuthorizedKeysFile {world.path(name)}_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "PasswordAuthentication no\nMaxStartups 1000\nMaxSessions 1000\nPrintMotd no\nUseDNS no\n"
    )
    server = world.start(name, ["/usr/sbin/sshd", "-D", "-e", "-f", config])
    world.wait_for(port, name)
    return port, host_key, server


def start_manager(world, target):
    answers = {"identify": {"user": "alice"}, "target": target, "announce": {}}

    class Stub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.dumps(answers.get(self.path.rsplit("/", 1)[1], {})).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def address_string(self):
            return "gateway"

        def log_message(self, *_):
            pass

    server = ThreadingUnixStreamServer(world.path("api.sock"), Stub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def start_all(world):
    member, robot = keygen(world.path("member")), keygen(world.path("robot"))
    guest, guest_key, _ = start_sshd(world, "guest", [member, robot])
    jump, jump_key, jump_server = start_sshd(world, "jump", [member])
    start_manager(
        world,
        {
            "vm_id": "0", "label": "dev.alice", "address": f"127.0.0.1:{guest}", "guest_user": "root",
            "host_keys": [guest_key], "private_key": open(world.path("robot")).read(),
        },
    )
    port = free_port()
    config = world.path("gvm.toml")
    open(config, "w").write(
        f'[manager]\nsocket = "{world.path("api.sock")}"\n'
        f'[gateway]\nlisten = "127.0.0.1:{port}"\nhost_key = "{world.path("gw_host")}"\n'
    )
    gateway = world.start("gateway", [os.environ["GVM"], "--config", config, "gateway"])
    world.wait_for(port, "gateway")
    gateway_key = " ".join(
        subprocess.run(["ssh-keygen", "-y", "-f", world.path("gw_host")], check=True, capture_output=True, text=True)
        .stdout.split()[:2]
    )
    open(world.path("known"), "w").write(f"guest {guest_key}\njump {jump_key}\ngw {gateway_key}\n")
    common = (
        f" Ciphers {CIPHER}\n UserKnownHostsFile {world.path('known')}\n IdentityFile {world.path('member')}\n"
        " IdentitiesOnly yes\n IdentityAgent none\n BatchMode yes\n StrictHostKeyChecking yes\n"
    )
    open(world.path("config"), "w").write(
        f"Host guest\n HostName 127.0.0.1\n Port {guest}\n User root\n HostKeyAlias guest\n"
        f"Host openssh\n HostName 127.0.0.1\n Port {guest}\n User root\n HostKeyAlias guest\n ProxyJump jump\n"
        f"Host jump\n HostName 127.0.0.1\n Port {jump}\n User root\n HostKeyAlias jump\n"
        f"Host gwjump\n HostName dev\n Port 22\n User root\n HostKeyAlias guest\n ProxyJump gw\n"
        f"Host gw terminate\n HostName 127.0.0.1\n Port {port}\n User dev\n HostKeyAlias gw\n"
        f"Host *\n{common}"
    )
    return gateway, jump_server


def ssh(world, *arguments):
    return ["ssh", "-F", world.path("config"), *arguments]


def master(world, host):
    control = world.path(host + ".ctl")
    subprocess.run(
        ssh(world, "-f", "-N", "-M", "-S", control, "-o", "ControlPersist=yes", host),
        check=True, timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )


def bulk(world, host, way, mib):
    """MiB/s of one transfer."""
    client = ssh(world, "-S", world.path(host + ".ctl"), host)
    begun = time.monotonic()
    if way == "down":
        subprocess.run(
            [*client, f"head -c {mib}M /dev/zero"], check=True, timeout=300, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    else:
        source = subprocess.Popen(["head", "-c", f"{mib}M", "/dev/zero"], stdout=subprocess.PIPE)
        got = subprocess.run([*client, "wc -c"], check=True, timeout=300, stdin=source.stdout, capture_output=True)
        source.wait()
        assert int(got.stdout) == mib << 20, got.stdout
    return mib / (time.monotonic() - begun)


def cpu(root):
    """CPU seconds of a process and all below it."""
    total, wanted, parents = 0, {root}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    for pid in sorted(parents):
        parent, ticks = parents[pid]
        if pid in wanted or parent in wanted:
            wanted.add(pid)
            total += ticks
    return total / os.sysconf("SC_CLK_TCK")


def ratios(world, host, pairs, mib, gateway, jump):
    found = []
    used = {(way, side): 0.0 for way in ("down", "up") for side in (host, "openssh")}
    pids = {host: gateway.pid, "openssh": jump.pid}
    for number in range(pairs):
        for way in ("down", "up"):
            sides = ["openssh", host] if number % 2 == 0 else [host, "openssh"]
            speed = {}
            for side in sides:
                before = cpu(pids[side])
                speed[side] = bulk(world, side, way, mib)
                used[way, side] += cpu(pids[side]) - before
            ratio = speed[host] / speed["openssh"]
            found.append(ratio)
            print(f"{host:9} {way:4} {speed[host]:6.0f} MiB/s, OpenSSH {speed['openssh']:6.0f}, ratio {ratio:.2f}",
                  flush=True)
    for (way, side), seconds in used.items():
        name = "gateway" if side == host else "the jump host's sshd"
        print(f"{host:9} {way:4} {1024 * seconds / (mib * pairs):.2f} CPU seconds a GiB in {name}", flush=True)
    return statistics.median(found)


class Terminal:
    """A session on a terminal whose other end echoes."""

    def __init__(self, world, host):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp("ssh", ssh(world, "-tt", host, "echo ready; exec sleep 1000"))
        self.until(b"ready")

    def until(self, text):
        seen = b""
        while text not in seen:
            if not select.select([self.fd], [], [], 30)[0]:
                sys.exit(f"no {text} from the terminal, only {seen}")
            seen += os.read(self.fd, 4096)

    def echo(self):
        begun = time.perf_counter()
        os.write(self.fd, b"x")
        self.until(b"x")
        return (time.perf_counter() - begun) * 1000

    def close(self):
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)


def keystrokes(world):
    direct, through = Terminal(world, "guest"), Terminal(world, "terminate")
    times = {direct: [], through: []}
    for _ in range(KEYSTROKES):
        for terminal, found in times.items():
            found.append(terminal.echo())
            time.sleep(0.004)
    added = statistics.median(times[through]) - statistics.median(times[direct])
    print(f"keystroke: {statistics.median(times[through]):.2f} ms through the gateway, "
          f"{statistics.median(times[direct]):.2f} ms without", flush=True)
    direct.close()
    through.close()
    return added


def resident_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def idle_sessions(world, gateway, count):
    clients = []
    for begin in range(0, count, 8):
        group = [
            subprocess.Popen(
                ssh(world, "terminate", "echo ready; exec cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for _ in range(min(8, count - begin))
        ]
        for client in group:
            assert client.stdout.readline() == b"ready\n", "a session did not start"
        clients += group
    time.sleep(2)
    resident = resident_mib(gateway.pid)
    for client in clients:
        client.stdin.close()
    for client in clients:
        client.wait(60)
    return resident


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--sessions", type=int, default=200)
    options = parser.parse_args()
    world = World()
    try:
        gateway, jump_server = start_all(world)
        for host in ("openssh", "gwjump", "terminate"):
            master(world, host)
        terminate = ratios(world, "terminate", options.pairs, options.mib, gateway, jump_server)
        jump = ratios(world, "gwjump", options.pairs, options.mib, gateway, jump_server)
        keystroke = keystrokes(world)
        for host in ("openssh", "gwjump", "terminate"):
            subprocess.run(ssh(world, "-S", world.path(host + ".ctl"), "-O", "exit", host), stderr=subprocess.DEVNULL)
        print(f"gateway: {resident_mib(gateway.pid):.1f} MiB after the bulk", flush=True)
        resident = idle_sessions(world, gateway, options.sessions)
    finally:
        world.close()
    print(json.dumps({
        "terminate_ratio": round(terminate, 3), "jump_ratio": round(jump, 3),
        "keystroke_ms": round(keystroke, 3), "rss_mib": round(resident, 1),
    }))


main()
