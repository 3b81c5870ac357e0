"""A command line of SGLang's server -> the server that it starts, and the configuration of a program for it.

One file for each question: what the command line says (`command_line`), what SGLang takes where it says nothing
(`defaults`), which server that makes (`server`), and how its program is written down (`written`).
"""
