"""What the matrix knows of a client: how it is had, what it reads from the environment, and the program that is run."""
import dataclasses


@dataclasses.dataclass
class Client:
    name: str
    # The packages of PyPI or npm; the first one's version is shown.
    packages: list
    # The text of the program. `FIXED` in it is an address that no variable names.
    script: str
    # Variables that this client reads for its address, and the path below the provider's address.
    reads: dict = dataclasses.field(default_factory=dict)
    # Providers that `record` gets by `--upstream PROVIDER=URL` in place of the variables, which are then set only when the program runs alone.
    upstreams: tuple = ()
    # Variables of keys: set for a recording, not set for a replay.
    keys: tuple = ()
    # Other settings, the same for recording and replay.
    settings: dict = dataclasses.field(default_factory=dict)
    # Hosts of telemetry and the like that the client calls besides: a recording expects them, a replay refuses them without an error.
    expected: tuple = ()
    note: str = ""
    runtime: str = "python"


OPENAI = {"reads": {"OPENAI_BASE_URL": "/v1"}, "keys": ("OPENAI_API_KEY",)}
ANTHROPIC = {"reads": {"ANTHROPIC_BASE_URL": ""}, "keys": ("ANTHROPIC_API_KEY",)}
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
AWS = {"reads": {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": ""}, "keys": AWS_KEYS, "settings": {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}}
