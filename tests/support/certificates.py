"""Certificates for tests, made by openssl: an authority with its certificates, and an unknown one."""

import subprocess

from support.servers import find_binary

HOST = "127.0.0.1"
# Python 3.13 asks for these, and for the authority's key usage.
KEYS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# name -> authority, the name that it certifies, days from today
CERTIFICATES = {
    "server": ("ca", f"IP:{HOST}", 2),
    "client": ("ca", "DNS:client", 2),
    "misnamed": ("ca", "DNS:somebody.example", 2),
    "expired": ("ca", f"IP:{HOST}", -1),
    "forged": ("stranger", f"IP:{HOST}", 2),
    "unknown": ("stranger", "DNS:client", 2),
}


def make_certificates(folder):
    """Write <name>.pem and <name>.key of all, and of the authorities ca and stranger."""
    program = find_binary("openssl")

    def openssl(*args):
        subprocess.run([program, *map(str, args)], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "stranger"):
        openssl("req", "-x509", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    for name, (authority, alternative, days) in CERTIFICATES.items():
        openssl("req", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\n{KEYS}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial", "-days", days, "-out", f"{name}.pem", "-extfile", f"{name}.ext")  # fmt: skip
    openssl("pkey", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
    return folder
