"""A client that answers at once and servers that are nothing but a health check, for the tests of serve."""

from __future__ import annotations

import sys

from svip_adapters.evaluation.serving.server import Launch

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(code, port, **environment):
    """A server that is this Python code; its first argument is the port."""
    return Launch([sys.executable, "-c", code, str(port)], environment, port)


SECONDS = {"none": 1.0, "host": 2.0}  # of a batch


class EchoClient:
    """Answers each prompt with itself, in 10 tokens; notes what it is asked."""

    wrong = stop_after = None

    def __init__(self, max_new_tokens=None, seconds=None):
        self.asked = []

    def send(self, server, prompts, concurrency):
        policy = getattr(server, "policy", server)
        self.asked.append((policy, concurrency, tuple(prompts)))
        if len(self.asked) == self.stop_after:
            raise KeyboardInterrupt
        count, took = len(prompts), SECONDS.get(policy, 0.5)
        drafted = 0 if policy == "none" else 2
        return {
            "seconds": took,
            "tokens": [10] * count,
            "first_token": [took / 10] * count,
            "latency": [took] * count,
            "texts": [prompt + "!" * (policy == self.wrong) for prompt in prompts],
            "drafts": count,
            "drafted": drafted * count,
            "accepted": count if drafted else 0,
        }
