"""The build backend of the package (PEP 517, PEP 660): a wheel with the extension module and the `annals` program.

One call of cargo builds both, so that their common crates are compiled once. $ANNALS_WHEEL_PROFILE names another
profile of cargo than `release`. The wheel's tag is that of this machine; auditwheel finds the manylinux tag
(.ci/python/wheel). There is no source archive: the package is built from a checkout of the whole project.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent.parent
PACKAGES = HERE / "python"
PROFILE = os.environ.get("ANNALS_WHEEL_PROFILE", "release")
MODULE = "annals/_annals.abi3.so"
# The stable ABI of Python 3.10, which pyo3's feature `abi3-py310` selects.
PYTHON_TAG = "cp310-abi3"
# The oldest date that a zip file can hold: the same files give the same wheel.
DATE = (1980, 1, 1, 0, 0, 0)


def build_sdist(directory: str, settings: Any = None) -> str:
    """Refused: the crates outside of this directory belong to the sources, too."""
    raise SystemExit("annals has no source archive: run `pip install ./server/python` in a checkout")


def prepare_metadata_for_build_wheel(directory: str, settings: Any = None) -> str:
    """Writes the metadata; returns the name of its directory."""
    name = _info_directory()
    for file, text in _metadata().items():
        path = Path(directory) / name / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Builds the module, the program and the wheel; returns the wheel's file name."""
    module, program = _build()
    sources = (path for path in PACKAGES.rglob("*") if path.suffix in (".py", ".pyi", ".typed"))
    files = {path.relative_to(PACKAGES).as_posix(): path.read_bytes() for path in sorted(sources)}
    return _write_wheel(directory, {**files, MODULE: module.read_bytes()}, program)


def build_editable(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """As `build_wheel`, for `pip install -e`: the wheel names this directory, and the module is put into it."""
    module, program = _build()
    target = PACKAGES / MODULE
    target.unlink(missing_ok=True)  # a process that has it loaded keeps the old one
    target.write_bytes(module.read_bytes())
    return _write_wheel(directory, {"annals.pth": f"{PACKAGES}\n".encode()}, program)


def _build() -> tuple[Path, Path]:
    """Builds with cargo; returns the extension module and the program."""
    command = ["cargo", "build", "--profile", PROFILE, "-p", "annals-python", "-p", "annals-cli"]
    command += ["--message-format", "json-render-diagnostics"]
    # Standard output is cargo's list of what it made.
    made = subprocess.run(command, cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Path] = {}
    for message in map(json.loads, made.splitlines()):
        if message["reason"] == "compiler-artifact" and message["target"]["name"] in ("annals_python", "annals"):
            kinds = message["target"]["kind"]
            if "cdylib" in kinds:
                found["module"] = Path(message["filenames"][0])
            elif "bin" in kinds:
                found["program"] = Path(message["executable"])
    return found["module"], found["program"]


def _project() -> dict[str, Any]:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((HERE.parent.parent / "Cargo.toml").read_text())["workspace"]
    return {**project, "version": workspace["package"]["version"]}


def _info_directory() -> str:
    return f"annals-{_project()['version']}.dist-info"


def _metadata() -> dict[str, str]:
    project = _project()
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need} ; extra == '{extra}'" for need in needs]
    lines += ["", (HERE / project["readme"]).read_text().rstrip()]
    groups = []
    for group, entries in project["entry-points"].items():
        groups += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    wheel = ["Wheel-Version: 1.0", "Generator: annals_build", "Root-Is-Purelib: false", f"Tag: {_tag()}"]
    texts = {"METADATA": lines, "WHEEL": wheel, "entry_points.txt": groups}
    return {name: "\n".join(text) + "\n" for name, text in texts.items()}


def _tag() -> str:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"{PYTHON_TAG}-{platform}"


def _write_wheel(directory: str, files: dict[str, bytes], program: Path) -> str:
    version, info = _project()["version"], _info_directory()
    name = f"annals-{version}-{_tag()}.whl"
    script = f"annals-{version}.data/scripts/annals"
    files = {**files, script: program.read_bytes()}
    files |= {f"{info}/{file}": text.encode() for file, text in _metadata().items()}
    record = []
    with zipfile.ZipFile(Path(directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record.append(f"{path},sha256={digest},{len(data)}")
            _add(wheel, path, data, 0o755 if path in (script, MODULE) else 0o644)
        record.append(f"{info}/RECORD,,")
        _add(wheel, f"{info}/RECORD", ("\n".join(record) + "\n").encode(), 0o644)
    return name


def _add(wheel: zipfile.ZipFile, path: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(path, DATE)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)
