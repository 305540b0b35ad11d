#!/usr/bin/env python3
"""Runs the `troupe` program as a person would:  check_command_line.py PATH-OF-TROUPE"""
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

TROUPE = sys.argv[1]


def run(*arguments, code=0):
    """Runs troupe and returns its stdout. A failure must leave exactly one line on stderr."""
    done = subprocess.run([TROUPE, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          check=False)
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
    for command in (["version"], ["certs"], ["certs", "init"], ["certs", "issue"]):
        assert "Usage: troupe " + " ".join(command) in run(*command, "--help")
    for wrong in ([], ["nonsense"], ["certs"], ["certs", "init"], ["certs", "issue", "x"],
                  ["certs", "init", "x", "--days", "many"], ["version", "--bogus"]):
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


def main():
    check_usage()
    with tempfile.TemporaryDirectory() as folder:
        check_certs(pathlib.Path(folder))
        if shutil.which("openssl"):
            check_with_openssl(pathlib.Path(folder))
    print("the command line behaves")


main()
