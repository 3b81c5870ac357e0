"""Commands for whoever runs vLLM, and the command that starts a server."""
