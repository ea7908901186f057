"""bench-create.sh, inside the private host: bench_create.py BINARY IMAGE_FOLDER PAIRS."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from datetime import datetime

from bench import Manager, Unix, calibration_ms, median, result, say

EVERY = 0.05  # between two looks for the SSH banner
DEADLINE = 300
CLONES = 15
VIRSH = ["virsh", "-q", "-c", "qemu:///system"]
# Of the members' network, and far from what gvm gives out first.
ADDRESS, MAC = "10.77.15.250", "52:54:00:be:9c:01"
OWN = "/var/lib/gvm/bench"
KEY = os.path.expanduser("~/.ssh/id_ed25519")


def run(*args, **more):
    done = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{' '.join(args)}: {done.stderr or done.stdout}")
    return done.stdout


def wait_for_login(address, user, begin):
    """Until a command has run in the guest. Seconds since begin: to the banner, and to the end of the command."""
    while time.monotonic() - begin < DEADLINE:
        try:
            with socket.create_connection((address, 22), timeout=0.5) as guest:
                guest.settimeout(2)
                if guest.recv(4) == b"SSH-":
                    break
        except OSError:
            pass
        time.sleep(EVERY)
    else:
        raise SystemExit(f"{address} did not come up within {DEADLINE} s")
    banner = time.monotonic() - begin
    run("ssh", "-F", "none", "-i", KEY, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o",
        "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=10", f"{user}@{address}", "true")
    return banner, time.monotonic() - begin


def stages(vm_id):
    """When each stage of the machine's last change began, as far as its definition."""
    api, begun = Unix(), {}
    api.request("GET", f"/v1/vms/{vm_id}/events")
    stream = api.getresponse()
    while "define" not in begun:
        line = stream.readline()
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            # Python 3.11 takes up to six digits of a second.
            at = re.sub(r"(\.\d{1,6})\d*Z", r"\1+00:00", event["at"])
            begun.setdefault(event["stage"], datetime.fromisoformat(at).timestamp())
    api.close()
    return begun


def prepared_s(vm_id):
    """Seconds that overlay and seed took, by the manager's own events."""
    begun = stages(vm_id)
    return begun["define"] - begun["disk"]


def by_gvm(manager, name):
    begin = time.monotonic()
    vm = manager.gvm("create", name, "--profile", "tiny", "--no-wait")["vm"]
    banner, login = wait_for_login(vm["address"], vm["guest_user"], begin)
    return vm, banner, login, prepared_s(vm["id"])


def gone(manager, name):
    manager.gvm("delete", "--now", "--yes", name)


class Twin:
    """The same machine without gvm: its description under another name, its files made anew for each start."""

    def __init__(self, manager):
        vm, *_ = by_gvm(manager, "model")
        self.user = vm["guest_user"]
        model = f"/var/lib/gvm/vms/{vm['id']}"
        os.makedirs(OWN, mode=0o711)
        text = run(*VIRSH, "dumpxml", "--inactive", "--security-info", f"gvm-{vm['id']}")
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
        text = text.replace(model, OWN).replace(f"<uuid>{vm['id']}</uuid>", f"<uuid>{uuid.uuid4()}</uuid>")
        text = text.replace(f"gvm-{vm['id']}", "twin").replace(vm["mac"], MAC).replace(vm["address"], ADDRESS)
        if vm["id"] in text:
            raise SystemExit(f"the description still names its model:\n{text}")
        self.xml = "/run/twin.xml"
        with open(self.xml, "w") as file:
            file.write(text)
        shutil.copy(f"{model}/seed.iso", "/run/seed.iso")
        self.disk = f"{model}/root.qcow2"
        self.backing = run("qemu-img", "info", "-U", "--output=json", self.disk)
        self.size = re.search(r'"virtual-size": (\d+)', self.backing)[1]
        gone(manager, "model")
        run(*VIRSH, "net-update", "gvm", "add-last", "ip-dhcp-host", f"<host mac='{MAC}' ip='{ADDRESS}'/>", "--live")

    def start(self):
        """Files and definition are made before the clock runs."""
        for name in os.listdir(OWN):
            os.unlink(f"{OWN}/{name}")
        shutil.copy("/run/seed.iso", f"{OWN}/seed.iso")
        base = re.search(r'"full-backing-filename": "([^"]+)"', self.backing)
        over = ["-b", base[1], "-F", "qcow2"] if base else []
        run("qemu-img", "create", "-q", "-f", "qcow2", *over, f"{OWN}/root.qcow2", self.size)
        run(*VIRSH, "define", self.xml)
        begin = time.monotonic()
        run(*VIRSH, "start", "twin")
        return wait_for_login(ADDRESS, self.user, begin)

    @staticmethod
    def end():
        run(*VIRSH, "destroy", "twin")
        run(*VIRSH, "undefine", "twin")


def pairs(manager, twin, count):
    gvm, banners, virsh, twin_banners, prepare = [], [], [], [], []

    def ours(turn):
        _, banner, login, prepared = by_gvm(manager, f"m{turn}")
        gone(manager, f"m{turn}")
        gvm.append(login), banners.append(banner), prepare.append(prepared)

    def theirs(_):
        banner, login = twin.start()
        twin.end()
        virsh.append(login), twin_banners.append(banner)

    for turn in range(count):
        for side in (ours, theirs) if turn % 2 else (theirs, ours):
            # What the one before has left to do is not to be paid by the next.
            time.sleep(1)
            side(turn)
        say(f"pair {turn + 1}: gvm {gvm[-1]:.2f} s with {prepare[-1] * 1000:.0f} ms for overlay and seed, "
            f"virsh {virsh[-1]:.2f} s")
    return gvm, banners, virsh, twin_banners, prepare


def make_image(name, size, data):
    """Imports an image of that virtual size with that much data in it."""
    path = f"/var/lib/libvirt/images/{name}.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", path, size)
    run("qemu-io", "-f", "qcow2", "-c", f"write -q -P 170 0 {data}", path)
    Unix().call("POST", "/v1/images", {"path": path, "name": name, "os": "debian12", "user": "gvm"})
    os.unlink(path)


def clones(manager):
    """Milliseconds for the overlay on a small and on a large image, and for the whole of create --stopped."""
    make_image("small", "100M", "10M")
    make_image("large", "10G", "1G")
    overlay, whole = {"small": [], "large": []}, {"small": [], "large": []}
    for turn in range(CLONES):
        for image in ("small", "large") if turn % 2 else ("large", "small"):
            begin = time.monotonic()
            made = manager.gvm("create", "c", "--profile", "debian", "--image", image, "--disk", "20G", "--stopped")
            whole[image].append((time.monotonic() - begin) * 1000)
            begun = stages(made["vm"]["id"])
            overlay[image].append((begun["seed"] - begun["disk"]) * 1000)
            gone(manager, "c")
    return overlay, whole


def main(binary, image, count):
    os.makedirs(os.path.dirname(KEY), mode=0o700)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY)
    manager = Manager(binary)
    manager.gvm("key", "add", f"{KEY}.pub")
    manager.gvm("image", "import", image)
    say(f"what runs guests here: {manager.settle_accelerator()}")
    twin = Twin(manager)
    twin.start(), twin.end()
    before = calibration_ms()
    gvm, banners, virsh, twin_banners, prepare = pairs(manager, twin, count)
    overlay, whole = clones(manager)
    after = calibration_ms()
    small, large = median(overlay["small"]), median(overlay["large"])
    say(f"overlay on 100 MiB {small:.0f} ms, on 10 GiB {large:.0f} ms; "
        f"create --stopped {median(whole['small']):.0f} and {median(whole['large']):.0f} ms")
    manager.stop()
    result(
        ratio_median=median([(a - p) / b for a, p, b in zip(gvm, prepare, virsh)]),
        clone_ratio=large / small,
        ratio_with_prepare_median=median([a / b for a, b in zip(gvm, virsh)]),
        ratio_banner_median=median([(a - p) / b for a, p, b in zip(banners, prepare, twin_banners)]),
        create_s=median(gvm),
        virsh_s=median(virsh),
        prepare_ms=median(prepare) * 1000,
        clone_small_ms=small,
        clone_large_ms=large,
        create_stopped_small_ms=median(whole["small"]),
        create_stopped_large_ms=median(whole["large"]),
        pairs=count,
        calibration_ms=[round(before), round(after)],
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
