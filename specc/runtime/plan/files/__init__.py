"""The files of a program, `manifest.json` and `plan.json`: typed records to and from JSON, each value checked."""
