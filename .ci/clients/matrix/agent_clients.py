"""Coding agents: whole programs that call tools. They are large, so they run only with --agents."""
CLIENTS = []
