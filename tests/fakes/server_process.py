"""A made-up server as a process of its own, with a child, as engines have them: `python server_process.py OPTIONS`.

It has a program unless `SPECC_PROGRAM` says that none may run, and leaves a line of JSON in a file when it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.openai_server import Fake, serving

FAULTS = ("", "ends", "silent", "starting", "dies", "stubborn", "no program")
"""It ends at once; listens nowhere; is never ready; ends at the first question; ends only when it is killed."""
LIMIT_S = 120
"""Seconds after which this server ends by itself, if nobody has stopped it."""


def main() -> None:
    """Serve until a signal ends this."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("--apart", help="a prompt whose text the program changes")
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LIMIT_S})"])
    choice, figures = os.environ.get("SPECC_PROGRAM"), os.environ["PROMETHEUS_MULTIPROC_DIR"]
    about = {"pids": [os.getpid(), child.pid], "port": given.port, "choice": choice, "figures": figures}
    with given.record.open("a") as file:
        file.write(json.dumps(about) + "\n")
    print("\x1b[31mloading weights", flush=True)
    if given.fault == "ends":
        sys.exit("out of memory")
    if given.fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = choice != "none" and given.fault != "no program"
    if not program:
        print("specc: specc_program_y does not run here", flush=True)
    fake = Fake(given.engine, program, apart={given.apart: 3.0} if given.apart else {}, fault=given.fault)
    if given.fault == "silent":
        time.sleep(LIMIT_S)
    with serving(fake, given.port):
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and not (given.fault == "dies" and fake.asked):
            time.sleep(0.01)
        os._exit(7)


if __name__ == "__main__":
    main()
