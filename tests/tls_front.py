#!/usr/bin/env python3
"""TLS in front of a plain server, for tests/test_http.c.

usage: tls_front.py FOLDER               makes certificates there, with the openssl program
       tls_front.py FOLDER NAME PORT     listens on a free port of 127.0.0.1 and passes on what comes to PORT, and back

Certificates, NAME.pem: `authority` signs `good` and `expired`, both for 127.0.0.1 and no other name, and `odd`, whose only
name has control characters; `other` signs nothing. They are made anew for each run of the tests, so that none is kept that runs out.

The front prints its port, then a line for each connection: "used" when the client sent something through TLS, else
"refused". It ends when its input does. An end of the connection behind is an end of the one in front, a reset a reset;
TLS's own goodbye is never said, so that each end is a cut.
"""
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading

CONFIG = """
[ca]
default_ca = endpoints
[endpoints]
database = issued
new_certs_dir = .
rand_serial = yes
default_md = sha256
unique_subject = no
policy = names
[names]
commonName = supplied
[server]
subjectAltName = IP:127.0.0.1
[odd]
basicConstraints = CA:FALSE
"""
RECORD = 1 << 16        # more than a record of TLS holds: reads leave nothing in it that select would not see
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(folder, *words):
    done = subprocess.run(["openssl", *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"openssl {' '.join(words)}: {done.stdout}")


def make_certificates(folder):
    for name, text in ("config", CONFIG), ("issued", ""):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    for name in "authority", "other":
        openssl(folder, "req", "-x509", *NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-subj", f"/CN=cedar test {name}", "-days", "2")
    openssl(folder, "req", *NEW_KEY, "-keyout", "server.key", "-out", "request", "-subj", "/CN=cedar test server")
    openssl(folder, "req", "-new", "-key", "server.key", "-out", "odd.request", "-subj", "/CN=odd\x1b[31m\nname")
    openssl(folder, "x509", "-req", "-in", "odd.request", "-CA", "authority.pem", "-CAkey", "authority.key",
            "-CAcreateserial", "-extfile", "config", "-extensions", "odd", "-days", "2", "-out", "odd.pem")
    # `ca`, since the other commands of OpenSSL 3.0 take no date
    for name, dates in ("good", ["-days", "2"]), ("expired", ["-startdate", "20000101000000Z",
                                                               "-enddate", "20000102000000Z"]):
        openssl(folder, "ca", "-batch", "-config", "config", "-cert", "authority.pem", "-keyfile", "authority.key",
                "-extensions", "server", "-in", "request", "-out", f"{name}.pem", "-notext", *dates)


def relay(tls, behind):
    other = {tls: behind, behind: tls}
    try:
        while True:
            for source in select.select([tls, behind], [], [])[0]:
                data = source.recv(RECORD)
                if not data:
                    return
                other[source].sendall(data)
    except OSError:
        tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def connection(context, plain, port):
    try:
        tls = context.wrap_socket(plain, server_side=True)
        asked = tls.recv(RECORD)        # a client may look at the certificate's names when the handshake is over
    except OSError:
        asked = b""
    if not asked:
        os.write(1, b"refused\n")
        return
    os.write(1, b"used\n")
    with tls, socket.create_connection(("127.0.0.1", port)) as behind:
        behind.sendall(asked)
        relay(tls, behind)


def front(folder, name, port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(folder, f"{name}.pem"), os.path.join(folder, "server.key"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.write(1, b"%d\n" % listener.getsockname()[1])
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            plain, _ = listener.accept()
            threading.Thread(target=connection, args=(context, plain, port)).start()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        make_certificates(sys.argv[1])
    else:
        front(sys.argv[1], sys.argv[2], int(sys.argv[3]))
