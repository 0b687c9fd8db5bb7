"""Generate the texts of a bundle: the README, the model cards, and the example in C."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.shipping.bundle.abis import abi_named
from tvmflow.shipping.bundle.manifest import Library, Manifest
from tvmflow.shipping.bundle.part import Part

# JavaScript's arrays of the dtypes of inputs; 16-bit floats are given as their bits.
_ARRAYS = {
    "float32": "Float32Array",
    "float16": "Uint16Array",
    "bfloat16": "Uint16Array",
    "int8": "Int8Array",
    "uint8": "Uint8Array",
    "bool": "Uint8Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
}

_README = """\
# {name}{version}

Networks as libraries that need nothing else: {abis}.

| network | library | function |
|---|---|---|
{rows}

{use}
- `manifest.json` has inputs, outputs, preprocessing and labels; `cells/*/card.md` tells what was measured.
- `provenance.dsse.json` holds the digest of every file and the signature; `tvmflow verify` checks both, and each
  library.
"""

_NATIVE = """\
In C or C++, from the folder of this file:

```
{build}
```

- `include/tvmflow.h` declares everything, `include/tvmflow.hpp` is the same for C++. Each library has one function of
  its own, named above; opened with `dlopen` it is `tvmflow_network` in every library.
- `examples/app.c` is a whole program: it runs arrays from `.npy` files, as those under `cells/*/golden/`.
- In Python with numpy: `from tvmflow_network import Network` with `python/` on the path, then
  `Network("{first}")(image)`.
- In Java or Kotlin: `java/tvmflow/Network.java`, and its native part, for Android by the NDK's clang with
  `--target=aarch64-linux-android24`:

  ```
  cc -std=c11 -O2 -shared -fPIC -Iinclude -I$JAVA_HOME/include -I$JAVA_HOME/include/linux java/tvmflow_jni.c \\
    -o libtvmflow_jni.so -ldl
  ```
"""

_WEB = """\
In a page or a worker, by a server that serves both files, or in node:

```js
import {{ Network }} from "./javascript/tvmflow.mjs";
const network = await Network.load("{file}");  // in node: the bytes of the file
console.log(network.inputs, network.outputs);  // names, shapes, dtypes
const outputs = network.run({{ {input}: new {array}({count}) }});
```
"""

_APPLE = """\
On Apple's systems: `tvmflow bundle CELL... --format xcframework` makes a Swift package of the same libraries, which are
archives of object files that Xcode links into an app. Each has one function, named above; `include/tvmflow.h` declares
what it returns, `swift/Network.swift` is the facade in Swift. They were inspected and linked, and have run on nothing.
"""

_APP = """\
/* Run a network on arrays from .npy files: app INPUT.npy... prints the beginning of each output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvmflow.h"

#ifndef NETWORK
#define NETWORK {symbol}
#endif
const tvmflow_api *NETWORK(void);

/* Read `size` bytes behind the header of an .npy file: the first sample of an array of samples. */
static int read_npy(const char *path, void *memory, size_t size) {{
  unsigned char head[10];
  FILE *file = fopen(path, "rb");
  int fine = file && fread(head, 1, sizeof head, file) == sizeof head && !memcmp(head, "\\x93NUMPY\\x01", 7) &&
             !fseek(file, 10 + head[8] + 256 * head[9], SEEK_SET) && fread(memory, 1, size, file) == size;
  if (file) fclose(file);
  return fine;
}}

int main(int count, char **words) {{
  const tvmflow_api *api = NETWORK();
  tvmflow_instance *net = NULL;
  void *inputs[16], *outputs[16];
  tvmflow_tensor info;
  if (api->abi_version != TVMFLOW_ABI_VERSION || api->inputs > 16 || api->outputs > 16) return 2;
  if ((uint32_t)count - 1 != api->inputs) {{
    fprintf(stderr, "%s takes %u inputs\\n", api->network, api->inputs);
    return 2;
  }}
  for (uint32_t i = 0; i < api->inputs; ++i) {{
    if (api->input(i, &info) || !(inputs[i] = malloc(info.size)) || !read_npy(words[1 + i], inputs[i], info.size)) {{
      fprintf(stderr, "%s: no array of %zu bytes\\n", words[1 + i], info.size);
      return 1;
    }}
  }}
  for (uint32_t i = 0; i < api->outputs; ++i) {{
    if (api->output(i, &info) || !(outputs[i] = malloc(info.size))) return 1;
  }}
  if (api->create(NULL, &net) || api->run(net, (const void *const *)inputs, outputs)) {{
    fprintf(stderr, "%s: %s\\n", api->network, api->last_error());
    return 1;
  }}
  for (uint32_t i = 0; i < api->outputs; ++i) {{
    api->output(i, &info);
    printf("%s:", info.name);
    for (size_t at = 0; info.dtype == TVMFLOW_FLOAT32 && at < 10 && at < info.size / 4; ++at) {{
      printf(" %.9g", ((float *)outputs[i])[at]);
    }}
    printf("\\n");
  }}
  if (api->labels) {{
    uint32_t best = 0;
    if (!api->top_k(outputs[0], api->label_count, 1, &best)) printf("%s\\n", api->labels[best]);
  }}
  api->destroy(net);
  for (uint32_t i = 0; i < api->inputs; ++i) free(inputs[i]);
  for (uint32_t i = 0; i < api->outputs; ++i) free(outputs[i]);
  return 0;
}}
"""


def _usage(libraries: Sequence[Library]) -> Iterable[str]:
    """Return how to use shared objects, modules of WebAssembly, and archives for Apple's systems."""
    if any(abi_named(one.abi).is_apple for one in libraries):
        yield _APPLE
    others = [one for one in libraries if not abi_named(one.abi).is_apple]
    for first in [one for one in others if not abi_named(one.abi).is_wasm][:1]:
        build = (
            f"cc -std=c11 -Iinclude examples/app.c -Llib/{first.abi} -l{first.soname[3:-3]} "
            f"-Wl,-rpath,'$ORIGIN/lib/{first.abi}' -o app\n"
            f"./app {' '.join(one.file for one in first.golden.inputs)}"
        )
        yield _NATIVE.format(build=build, first=first.file)
    for first in [one for one in libraries if abi_named(one.abi).is_wasm][:1]:
        given = first.inputs[0]
        yield _WEB.format(file=first.file, input=given.name, array=_ARRAYS[given.dtype], count=math.prod(given.shape))


def readme(manifest: Manifest) -> bytes:
    """Return README.md: how to link the libraries."""
    rows = "\n".join(f"| `{one.cell}` | `{one.file}` | `{one.symbol}` |" for one in manifest.libraries)
    version = f", version {manifest.version}" if manifest.version else ""
    use = "\n".join(_usage(manifest.libraries))
    text = _README.format(name=manifest.name, version=version, abis=", ".join(manifest.abis), rows=rows, use=use)
    for one in manifest.libraries:
        if numbers := [f"`{_plain(given.name)}`" for given in one.inputs if given.dtype in ("int32", "int64")]:
            text += _TOKENS.format(file=one.file, inputs=", ".join(numbers))
        if one.device:
            text += _DEVICE.format(file=one.file, device=one.device)
        if one.gpu:
            text += _GPU.format(file=one.file, api=_API_NAMES.get(one.gpu, one.gpu))
    return text.encode()


_TOKENS = """
`{file}` takes integers ({inputs}). Where they are tokens of a text, it takes their ids, not the text: the tokenizer is
no part of it, and the app needs the one that the model was trained with.
"""
_DEVICE = """
`{file}` computes a part of the network on the accelerator {device}. `create_on` in the place of `create` takes a driver
for it, five functions that `include/tvmflow.h` declares.
"""


_API_NAMES = {"opencl": "OpenCL", "vulkan": "Vulkan"}
_GPU = """
`{file}` runs on a GPU by {api}, whose driver it finds on the system. Where there is none, or it fails, `create` returns
`TVMFLOW_DEVICE_FAILED`, and `last_error` says why. `create_on_gpu` in its place names a folder of the app's for
compiled programs, so that later starts do not compile them. With the network's library for the CPU take that one's
`create_with_gpu`: it compares both and computes on the GPU while that can be trusted, else on the CPU; `processor` says
who does and why.
"""


def example(library: Library) -> bytes:
    """Return examples/app.c, which by default runs this library."""
    return _APP.format(symbol=library.symbol).encode()


def card(library: Library, part: Part) -> bytes:
    """Return the model card of a cell: description, measurements and provenance."""
    made = library.made
    lines = [f"# {library.cell}", "", *_table(("what", "value"), _facts(library, part)), ""]
    if part.is_measured:
        device = part.card.device
        lines += ["## Measured", "", f"On {device.kind} ({device.key}), with {device.threads} threads.", ""]
        lines += _table(("what", "value"), _measured(part.card))
    else:
        lines += ["## Not measured", "", "This library ran on no device: no latency, no accuracy, and its outputs were"]
        lines += ["not compared on one. It is for the build of an app, not for a release."]
    lines += ["", "## Inputs and outputs", ""]
    tensors = [("input", one) for one in library.inputs] + [("output", one) for one in library.outputs]
    lines += _table(
        ("", "name", "shape", "dtype"),
        ((kind, f"`{_plain(one.name)}`", "x".join(map(str, one.shape)), one.dtype) for kind, one in tensors),
    )
    if library.preprocessing:
        lines += ["", f"An image becomes the input by: {library.preprocessing.model_dump_json()}"]
    lines += ["", "## Made with", "", *_table(("tool", "version"), sorted(made.toolchain.items()))]
    return ("\n".join(lines) + "\n").encode()


def _facts(library: Library, part: Part) -> list[tuple[str, str]]:
    entry, made = part.entry, library.made
    weights = next(
        (
            f"{kind}: {value}"
            for kind, value in entry["weights"].items()
            if value is not None and kind not in ("parts", "sha256")
        ),
        "unknown",
    )
    data = entry["dataset"] or "none: inputs made from a seed, no accuracy"
    return [
        ("network", f"{entry['framework']}, {entry['network'] or part.source.weights_file}"),
        ("weights", _plain(weights)),
        ("data set", _plain(str(data))),
        ("library", f"`{library.file}`, {library.abi}, for {made.mcpu}, {library.threads} threads"),
        ("weights in it", f"{library.constant_bytes} bytes"),
        ("memory of an instance", f"{library.arena_bytes} bytes"),
        ("version in the registry", made.version or "none"),
        ("classes", str(len(library.labels)) if library.labels else "unnamed"),
        *([("accelerator", library.device)] if library.device else []),
        *(
            (f"{name}, of any run", f"1 to {buckets[-1]}, buckets {', '.join(map(str, buckets))}")
            for name, buckets in library.sizes.items()
        ),
    ]


def _measured(scorecard: Scorecard) -> list[tuple[str, str]]:
    rows = []
    if shares := scorecard.accuracy:
        text = f"{shares.built:.2%} of {shares.samples} samples; the source framework {shares.source:.2%}"
        rows.append(("accuracy", text))
    agreement = scorecard.agreement
    if agreement.top1_agreement is not None:
        rows.append(("top-1 agreement with the source", f"{agreement.top1_agreement:.2%}"))
    rows.append(("largest error, relative to the spread of the outputs", f"{agreement.max_relative_error:.2g}"))
    latency, executed = scorecard.latency.compute, scorecard.executed
    badges = f" ({', '.join(latency.badges)})" if latency.badges else ""
    if executed:
        rows.append(("executed instructions, of an emulated device", f"{executed.instructions / 1e6:.4g} M"))
    else:
        rows.append(("latency, median", f"{latency.median_ms:.4g} ms{badges}"))
    rows.append(("operations whose schedules were measured", f"{scorecard.coverage:.1%}"))
    return rows


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def _plain(text: str) -> str:
    """Return text that cannot break out of a table cell."""
    return "".join(c if c.isprintable() and c not in "|`<>" else " " for c in text)
