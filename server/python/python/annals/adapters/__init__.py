"""Frameworks: their tools recorded and substituted, and their structure noted as frames.

Model calls need no adapter: they are recorded at the HTTP client. An adapter wraps what a framework calls a tool, so
that a replay hands back its recorded result without running it. No framework is imported unless its adapter is.
`docs/frameworks.md` says for each one what is recorded, what is substituted, and what is not.
"""
