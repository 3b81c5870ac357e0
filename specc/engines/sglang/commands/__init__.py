"""Commands for whoever runs SGLang, and the command that starts a server."""
