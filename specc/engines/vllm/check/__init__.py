"""A command line of vLLM's server -> the server that it starts, and the configuration of a program for it.

One file for each question: what the command line says (`command_line`), how drafts are made (`speculation`), what vLLM
takes where nothing is said (`defaults`), which server that makes (`server`), and how its program is written down
(`written`).
"""
