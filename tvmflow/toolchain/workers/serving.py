"""Serve requests of tvmflow from a tool environment; nothing of tvmflow can be imported here.

Importing this module ends the process with its parent, and keeps what a framework prints out of the replies.
"""

import ctypes
import io
import json
import os
import sys
import time

ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # killed with its parent
replies = os.dup(1)
os.dup2(2, 1)  # frameworks print to standard output

import numpy as np  # noqa: E402


def time_runs(run, count):
    """Return the seconds of each run."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return np.array(times)


def describe(error):
    """Return the first and the last line of an error: a compiler's text may end with the program, or begin with no
    more than a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ... ".join(dict.fromkeys(line[:200] for line in (lines[0], lines[-1])))


def load(body, inputs):
    """Return the array of a body, None without one; of several inputs, [name, bytes] each, name -> array."""
    if inputs is None:
        return np.load(io.BytesIO(body), allow_pickle=False) if body else None
    arrays, at = {}, 0
    for name, size in inputs:
        arrays[name] = np.load(io.BytesIO(body[at : at + size]), allow_pickle=False)
        at += size
    return arrays


def send(head, bodies=()):
    os.write(replies, json.dumps(head).encode() + b"\n")
    for body in bodies:
        view = memoryview(body)
        while view:
            view = view[os.write(replies, view) :]


def serve(make_model):
    """Answer requests on standard input until it is closed. make_model: loads the model, at the first request."""
    model = None
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        head = json.loads(line)
        body = sys.stdin.buffer.read(head["bytes"])
        try:
            model = model or make_model()
            x = load(body, head.get("inputs"))
            arrays = model.reply(head, x)
        except Exception as error:
            send({"error": describe(error)})
            continue
        bodies = []
        for _, array in arrays:
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            bodies.append(buffer.getvalue())
        send({"arrays": [[name, len(body)] for (name, _), body in zip(arrays, bodies)]}, bodies)
