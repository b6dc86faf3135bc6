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
        self.cache, self.node, self.sets = cache, cache / "node", cache / "sets"
        self.node.mkdir(parents=True, exist_ok=True)
        self.sets.mkdir(parents=True, exist_ok=True)
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

    def install_node(self, packages):
        """npm has one folder for all. Returns whether all of these packages are there."""
        missing = [package for package in packages if self.node_version(package) is None]
        if missing and shutil.which("npm"):
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *missing]
            subprocess.run(command, cwd=self.node, stdout=sys.stderr, check=False)
        return all(self.node_version(package) for package in packages)

    def node_version(self, package):
        file = self.node / "node_modules" / package / "package.json"
        return json.loads(file.read_text())["version"] if file.exists() else None

    def prepare(self, clients):
        """Installs what the clients need. Returns why a client cannot run, by its name."""
        node = sorted({package for client in clients if client.runtime == "node" for package in client.packages})
        if node and shutil.which("node"):
            self.install_node(node)
        return {client.name: why for client in clients if (why := self.missing(client))}

    def missing(self, client):
        if client.runtime == "python" and not self.install_python(client.packages):
            return f"pip cannot install {' '.join(client.packages)}"
        if client.runtime == "node" and not (shutil.which("node") and self.install_node(client.packages)):
            return f"npm cannot install {' '.join(client.packages)}"
        if client.packages == ["httpie"]:
            return None if self.install_python(["httpie"]) else "pip cannot install httpie"
        if client.runtime == "shell" and not shutil.which(client.packages[0]):
            return f"{client.packages[0]} is not on the path: apt-get install {client.packages[0]}"
        return None

    def version(self, client):
        package = bare(client.packages[0])
        if client.runtime == "node":
            return self.node_version(package)
        if client.runtime == "shell" and package != "httpie":
            told = subprocess.run([package, "--version"], capture_output=True, text=True).stdout
            return re.search(r"\d+(\.\d+)+", told)[0]
        python = self.venv(client.packages) / "bin" / "python"
        return subprocess.run([python, "-c", VERSION, package], capture_output=True, text=True).stdout.strip()

    def command(self, client, folder):
        """Writes the program into the folder. Returns the command that runs it and what PATH needs besides."""
        ending = {"python": "py", "node": "mjs", "shell": "sh"}[client.runtime]
        (folder / f"agent.{ending}").write_text(client.script)
        if client.runtime == "node":
            (folder / "node_modules").symlink_to(self.node / "node_modules")
            return ["node", "agent.mjs"]
        if client.runtime == "shell":
            return ["bash", "agent.sh"]
        return [str(self.venv(client.packages) / "bin" / "python"), "agent.py"]

    def path(self):
        return [self.venv(["httpie"]) / "bin", self.node / "node_modules" / ".bin"]
