"""The build backend of the package (PEP 517): a wheel with the extension module and the `annals` program.

maturin builds the module. This backend builds the program first, and puts it where maturin takes scripts from.
$ANNALS_WHEEL_PROFILE names another profile of cargo than `release`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import maturin

HERE = Path(__file__).resolve().parent.parent
SCRIPTS = HERE / "wheel-data" / "scripts"
PROFILE = os.environ.get("ANNALS_WHEEL_PROFILE", "release")

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
get_requires_for_build_editable = maturin.get_requires_for_build_editable
build_sdist = maturin.build_sdist


def prepare_metadata_for_build_wheel(directory: str, settings: Any = None) -> str:
    """Writes the metadata; returns the name of its directory."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)  # maturin refuses a missing directory
    return maturin.prepare_metadata_for_build_wheel(directory, settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Builds the program and the wheel; returns the wheel's file name."""
    _build_program()
    return maturin.build_wheel(directory, settings, metadata)


def build_editable(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """As `build_wheel`, for `pip install -e`."""
    _build_program()
    return maturin.build_editable(directory, settings, metadata)


def _build_program() -> None:
    os.environ["MATURIN_PEP517_ARGS"] = f"--profile {PROFILE}"
    command = ["cargo", "build", "--profile", PROFILE, "-p", "annals-cli"]
    subprocess.run(command, cwd=HERE, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target"))
    built = target / ("debug" if PROFILE == "dev" else PROFILE) / "annals"
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built, SCRIPTS / "annals")
