"""Installs the packages of the clients by name, from PyPI and npm, and reads their versions from what is installed."""
import json
import re
import shutil
import subprocess
import sys

VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def bare(package):
    """The name of a package without what it takes along: `a[b]` is `a`."""
    return package.split("[")[0]


class Installer:
    def __init__(self, cache):
        self.sets = cache / "sets"
        # Coding agents are apart from the libraries: each has many packages of its own.
        self.npm = {"node": cache / "node", "agent": cache / "agents"}
        for folder in (self.sets, *self.npm.values()):
            folder.mkdir(parents=True, exist_ok=True)
        self.uv = shutil.which("uv")

    def venv(self, packages):
        """One environment for each set of packages: clients disagree about what they need."""
        return self.sets / "+".join(re.sub("[^a-z0-9-]+", "_", package) for package in packages)

    def install_python(self, packages):
        venv = self.venv(packages)
        if (venv / "installed").exists():
            return True
        shutil.rmtree(venv, ignore_errors=True)
        python = venv / "bin" / "python"
        make = [self.uv, "venv", "-q", venv] if self.uv else [sys.executable, "-m", "venv", venv]
        add = [self.uv, "pip", "install", "-q", "--python", python] if self.uv else [python, "-m", "pip", "install", "-q"]
        for command in (make, [*add, *packages]):
            if subprocess.run(command, stdout=sys.stderr).returncode != 0:
                return False
        (venv / "installed").touch()
        return True

    def install_npm(self, runtime, packages):
        """Returns whether all of these packages are there."""
        missing = [package for package in packages if self.npm_version(runtime, package) is None]
        if missing and shutil.which("npm"):
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *missing]
            subprocess.run(command, cwd=self.npm[runtime], stdout=sys.stderr, check=False)
        return shutil.which("node") and all(self.npm_version(runtime, package) for package in packages)

    def npm_version(self, runtime, package):
        file = self.npm[runtime] / "node_modules" / package / "package.json"
        return json.loads(file.read_text())["version"] if file.exists() else None

    def prepare(self, clients):
        """Installs what the clients need. Returns why a client cannot run, by its name."""
        for runtime in self.npm:
            self.install_npm(runtime, sorted({package for client in clients if client.runtime == runtime for package in client.packages}))
        return {client.name: why for client in clients if (why := self.missing(client))}

    def missing(self, client):
        names = " ".join(client.packages)
        if client.runtime == "python" or client.packages == ["httpie"]:
            return None if self.install_python(client.packages) else f"PyPI's {names} cannot be installed"
        if client.runtime in self.npm:
            return None if self.install_npm(client.runtime, client.packages) else f"npm's {names} cannot be installed"
        return None if shutil.which(names) else f"{names} is not on the path: apt-get install {names}"

    def version(self, client):
        package = bare(client.packages[0])
        if client.runtime in self.npm:
            return self.npm_version(client.runtime, package)
        if client.runtime == "shell" and package != "httpie":
            told = subprocess.run([package, "--version"], capture_output=True, text=True).stdout
            return re.search(r"\d+(\.\d+)+", told)[0]
        python = self.venv(client.packages) / "bin" / "python"
        return subprocess.run([python, "-c", VERSION, package], capture_output=True, text=True).stdout.strip()

    def command(self, client, folder):
        """Writes the program into the folder. Returns the command that runs it."""
        ending = {"python": "py", "node": "mjs"}.get(client.runtime, "sh")
        (folder / f"agent.{ending}").write_text(client.script)
        if client.runtime == "node":
            (folder / "node_modules").symlink_to(self.npm["node"] / "node_modules")
            return ["node", "agent.mjs"]
        if client.runtime in ("shell", "agent"):
            return ["bash", "agent.sh"]
        return [str(self.venv(client.packages) / "bin" / "python"), "agent.py"]

    def path(self):
        """What PATH needs besides."""
        return [self.venv(["httpie"]) / "bin", self.npm["agent"] / "node_modules" / ".bin"]
