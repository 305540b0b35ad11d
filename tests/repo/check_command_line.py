#!/usr/bin/env python3
"""Runs the `troupe` program as a person would:  check_command_line.py PATH-OF-TROUPE"""
import http.server
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time

TROUPE = sys.argv[1]


def run(*arguments, code=0, env=None):
    """Runs troupe and returns its stdout. A failure must leave exactly one line on stderr."""
    done = subprocess.run([TROUPE, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          check=False, env={**os.environ, **(env or {})})
    said = f"troupe {' '.join(map(str, arguments))} -> {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == code, said
    if code == 0:
        assert done.stderr == "", said
        return done.stdout
    assert re.fullmatch(r"troupe: [^\n]+\n", done.stderr), said
    return done.stderr


def check_usage():
    assert re.fullmatch(r"troupe \d+\.\d+\.\d+(\+[\w.-]+)?\n", run("version"))
    assert "certs" in run("--help")
    for command in (["version"], ["certs"], ["certs", "init"], ["certs", "issue"], ["node"], ["local"],
                    ["status"], ["events"], ["drain"], ["ping"]):
        assert "Usage: troupe " + " ".join(command) in run(*command, "--help")
    for wrong in ([], ["nonsense"], ["certs"], ["certs", "init"], ["certs", "issue", "x"],
                  ["certs", "init", "x", "--days", "many"], ["version", "--bogus"], ["status"],
                  ["drain", "x"], ["events", "--cluster", "a:1", "--limit", "0"], ["local"],
                  ["local", "0"], ["local", "2", "--bogus"], ["node", "--bogus"]):
        assert "--help`" in run(*wrong, code=2)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([TROUPE, "version"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1 and b"troupe: " in done.stderr


def check_certs(folder):
    pki, node = folder / "pki", folder / "node"
    run("certs", "init", pki, "--cluster", "prod", "--days", "30")
    assert "exists already" in run("certs", "init", pki, code=1)
    issue = ("certs", "issue", pki, "--name", "alpha", "--dns", "alpha.example.org", "--dns",
             "a.example.org", "--ip", "10.0.0.1", "--out", node)
    run(*issue)
    assert "exists already" in run(*issue, code=1)
    run(*issue, "--force")
    run("certs", "init", pki, "--cluster", "prod", "--force")
    assert "another CA" in run("certs", "issue", pki, "--name", "beta", "--out", node, code=1)
    assert "certs init" in run("certs", "issue", folder / "nowhere", "--name", "a", code=1)
    assert "not acceptable" in run("certs", "issue", pki, "--name", "../x", code=1)
    assert "not acceptable" in run("certs", "init", folder / "no", "--days", "0", code=1)
    assert not (folder / "no").exists()
    for key in (pki / "ca.key", node / "alpha.key"):
        assert stat.S_IMODE(os.stat(key).st_mode) == 0o600, key


def check_with_openssl(folder):
    """The openssl program, which shares no code of ours, accepts what we made."""
    pki = folder / "check"
    run("certs", "init", pki, "--cluster", "prod")
    run("certs", "issue", pki, "--name", "alpha", "--dns", "alpha.example.org", "--ip", "::1")
    for purpose in ("sslserver", "sslclient"):
        subprocess.run(["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile",
                        pki / "ca.pem", "-verify_hostname", "alpha.example.org", pki / "alpha.pem"],
                       check=True, stdout=subprocess.DEVNULL)
    text = subprocess.run(["openssl", "x509", "-in", pki / "alpha.pem", "-noout", "-text"], check=True,
                          capture_output=True, text=True).stdout
    assert "URI:troupe://cluster/prod, DNS:alpha.example.org, IP Address:0:0:0:0:0:0:0:1" in text, text


def check_node_settings(folder):
    """Flags over environment over file over defaults, each with its place; what is printed reads back."""
    file = folder / "troupe.toml"
    file.write_text('[node]\nname = "file"\n[membership]\nlease = "7s"\n[cluster]\nhead = true\n',
                    encoding="utf-8")
    env = {"TROUPE_CONFIG": str(file), "TROUPE_DOWN_AFTER": "4s"}
    text = run("node", "--print-config", "--labels", "zone=a", "--cluster-name", "demo", env=env)
    for line, place in (('name = "file"', f"{file}:2"), ('lease = "7s"', f"{file}:4"),
                        ("head = true", f"{file}:6"), ('down_after = "4s"', "environment TROUPE_DOWN_AFTER"),
                        ('labels = { zone = "a" }', "flag --labels"), ('name = "demo"', "flag --cluster-name"),
                        ('listen = "127.0.0.1:4700"', "default"), ("observers = 2", "default")):
        assert re.search(re.escape(line) + r" +# " + re.escape(place) + "$", text, re.M), (line, text)
    again = folder / "again.toml"
    again.write_text(text, encoding="utf-8")
    values = [line.split("  # ")[0].rstrip() for line in text.splitlines()]
    back = run("node", "--print-config", "--config", again)
    assert values == [line.split("  # ")[0].rstrip() for line in back.splitlines()], back
    assert "head = false" in run("node", "--print-config", "--head=false", env=env)

    file.write_text('[node]\nlistne = "x"\n', encoding="utf-8")
    said = run("node", code=2, env=env)
    assert f"{file}:2" in said and "node.listen" in said, said
    file.write_text("[node\n", encoding="utf-8")
    assert f"{file}:1" in run("node", code=2, env=env)
    assert "No such file" in run("node", "--config", folder / "nothing.toml", code=2)
    assert "TROUPE_LISTEN" in run("node", code=2, env={"TROUPE_LISTN": "x"})
    assert "heartbeat" in run("node", "--lease", "1ms", code=2)
    assert "--lease" in run("node", "--lease", "soon", code=2)
    assert "--lease" in run("local", "2", "--", "--lease", "soon", code=2)
    assert "--join" in run("local", "2", "--", "--join", "a:1", code=2)


class Api(http.server.BaseHTTPRequestHandler):
    """Answers as a node does."""
    cluster = {"cluster": "demo", "cluster_id": "ab" * 16, "epoch": 7, "term": 2, "broker": "01" * 16,
               "broker_address": "127.0.0.1:1", "ended": [],
               "nodes": [{"id": "01" * 16, "name": "alpha", "address": "127.0.0.1:1", "state": "up",
                          "head": True, "incarnation": 1, "pid": 5, "resources": {"cpu": 2},
                          "labels": {}, "since": "2026-11-30T12:00:00.000Z"}]}
    events = [{"seq": 1, "time": "2026-11-30T12:00:00.000Z", "epoch": 3, "node": "01" * 16,
               "incarnation": 1, "name": "alpha", "address": "127.0.0.1:1", "what": "up",
               "reason": "confirmed"}]

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/api/v1/cluster":
            self.answer(200, self.cluster)
        elif self.path.startswith("/api/v1/events?after=0&limit="):
            self.answer(200, {"events": self.events})
        else:
            self.answer(404, {"error": {"code": "not_found", "text": "no such path"}})

    def do_POST(self):
        if self.path in ("/api/v1/nodes/alpha/drain", "/api/v1/nodes/alpha/drain?deadline_ms=1500"):
            self.answer(202, {"ok": True, "node": "01" * 16, "text": "draining"})
        else:
            self.answer(404, {"error": {"code": "not_found", "text": "no node " + self.path}})

    def log_message(self, *_):
        pass


def check_cluster_commands():
    """Each answers, or says in one line why not, within 2 s."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    table = run("status", "--cluster", address)
    assert "1 up" in table and "alpha *" in table and "01010101 " in table, table
    assert run("status", env={"TROUPE_CLUSTER": address}).splitlines()[0] == table.splitlines()[0]
    assert json.loads(run("status", "--cluster", address, "--json")) == Api.cluster
    assert "alpha (01010101) #1 at 127.0.0.1:1: up: confirmed" in run("events", "--cluster", address)
    assert json.loads(run("events", "--cluster", address, "--json")) == {"events": Api.events}
    assert "draining" in run("drain", "alpha", "--cluster", address, "--deadline", "1500ms")
    assert "no node /api/v1/nodes/a%2Fb" in run("drain", "a/b", "--cluster", address, code=1)
    assert "duration" in run("drain", "alpha", "--cluster", address, "--deadline", "soon", code=2)
    server.shutdown()
    server.server_close()
    for command in (["status"], ["events"], ["drain", "alpha"]):
        began = time.monotonic()
        assert "refused" in run(*command, "--cluster", address, code=1)
        assert "not an address" in run(*command, "--cluster", "nowhere", code=1)
        assert time.monotonic() - began < 10  # generous: the machine may be busy


def main():
    check_usage()
    check_cluster_commands()
    with tempfile.TemporaryDirectory() as folder:
        check_certs(pathlib.Path(folder))
        check_node_settings(pathlib.Path(folder))
        if shutil.which("openssl"):
            check_with_openssl(pathlib.Path(folder))
    print("the command line behaves")


main()
