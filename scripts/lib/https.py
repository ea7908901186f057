"""The manager's API over HTTPS, with a token, for benches: one connection, kept open."""

import http.client
import json
import ssl

PORT = 8443
ADDRESS = f"127.0.0.1:{PORT}"
CONFIG = f"""
[manager]
accelerator = "emulation"
[https]
listen = "{ADDRESS}"
# One client, and one person, ask as fast as they can.
requests_per_second = 1000000
person_requests_per_second = 1000000
"""


class Https(http.client.HTTPSConnection):
    def __init__(self, token):
        # The certificate is the manager's own, and this is the manager's own loopback.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        super().__init__("127.0.0.1", PORT, context=context, timeout=60)
        self.headers = {"content-type": "application/json"}
        if token is not None:
            self.headers["authorization"] = f"Bearer {token}"

    def answer(self, method, path, body=None):
        """Its head; what follows is not read yet."""
        self.request(method, path, None if body is None else json.dumps(body), self.headers)
        return self.getresponse()

    def ask(self, method, path, body=None):
        answer = self.answer(method, path, body)
        return answer.status, answer.read()

    def status(self, method, path, body=None):
        return self.ask(method, path, body)[0]

    def call(self, method, path, body=None):
        """The answer; anything but success ends the bench."""
        status, text = self.ask(method, path, body)
        if status >= 300:
            raise SystemExit(f"{method} {path}: {status} {text.decode()}")
        return json.loads(text)
